//! The mesh of a parallel training run: how ranks are divided into pipeline stages and the like.

use std::fmt;
use std::str::FromStr;

/// Maximum number of dimensions of a mesh.
const MAX_DIMENSIONS: usize = 8;
/// Maximum number of ranks of a mesh.
const MAX_RANKS: u64 = 1 << 20;

/// The dimensions of a run, the slowest-changing first, such as `pp=4,dp=2,tp=8`: as PyTorch's
/// `init_device_mesh((4, 2, 8), mesh_dim_names=("pp", "dp", "tp"))` numbers ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh(Vec<(String, u32)>);

/// Why a text is not a [`Mesh`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected dimensions such as pp=4,dp=2,tp=8, the slowest-changing first: {0}")]
pub struct MeshError(&'static str);

/// The place of a rank in a mesh: its number in each dimension.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Coordinates(Vec<(String, u32)>);

impl FromStr for Mesh {
    type Err = MeshError;

    fn from_str(text: &str) -> Result<Self, MeshError> {
        let mut dimensions: Vec<(String, u32)> = Vec::new();
        let mut ranks = 1_u64;
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, size) = part.split_once('=').ok_or(MeshError("a size is missing"))?;
            let size: u32 = size.trim().parse().map_err(|_| MeshError("a size is not a number"))?;
            let name = name.trim();
            if name.is_empty() || name.len() > 16 || !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                return Err(MeshError("names have 1 to 16 letters or digits"));
            }
            if dimensions.iter().any(|(known, _)| known == name) {
                return Err(MeshError("a dimension is repeated"));
            }
            ranks = ranks.saturating_mul(u64::from(size));
            if size == 0 || ranks > MAX_RANKS || dimensions.len() == MAX_DIMENSIONS {
                return Err(MeshError("it has no rank or too many"));
            }
            dimensions.push((name.to_owned(), size));
        }
        Ok(Self(dimensions))
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|(name, size)| format!("{name}={size}")).collect();
        f.write_str(&parts.join(","))
    }
}

impl Mesh {
    /// Returns the place of a rank; `None` if the mesh has no dimensions or the rank is not in it.
    #[must_use]
    pub fn coordinates(&self, rank: u32) -> Option<Coordinates> {
        let mut rest = rank;
        let mut numbers = Vec::with_capacity(self.0.len());
        for (name, size) in self.0.iter().rev() {
            numbers.push((name.clone(), rest % size));
            rest /= size;
        }
        numbers.reverse();
        (rest == 0 && !numbers.is_empty()).then_some(Coordinates(numbers))
    }
}

impl Coordinates {
    /// Returns the rank's number in a dimension, such as `pp`; `None` if the mesh has no such
    /// dimension.
    #[must_use]
    pub fn get(&self, dimension: &str) -> Option<u32> {
        self.0.iter().find(|(name, _)| name == dimension).map(|&(_, number)| number)
    }
}

impl fmt::Display for Coordinates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|(name, number)| format!("{name} {number}")).collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_numbered_as_in_a_device_mesh() {
        let mesh: Mesh = "pp=4, dp=2,tp=8".parse().expect("a valid mesh");
        assert_eq!(mesh.to_string(), "pp=4,dp=2,tp=8");
        let check = |rank: u32, expected: Option<&str>| {
            let shown = mesh.coordinates(rank).map(|coordinates| coordinates.to_string());
            assert_eq!(shown.as_deref(), expected);
        };
        check(0, Some("pp 0, dp 0, tp 0"));
        check(7, Some("pp 0, dp 0, tp 7"));
        check(8, Some("pp 0, dp 1, tp 0"));
        check(63, Some("pp 3, dp 1, tp 7"));
        check(64, None);
        assert_eq!(mesh.coordinates(35).and_then(|coordinates| coordinates.get("pp")), Some(2));
        assert_eq!(mesh.coordinates(35).and_then(|coordinates| coordinates.get("ep")), None);
        assert_eq!(Mesh::default().coordinates(0), None);
    }

    #[test]
    fn invalid_meshes_are_refused() {
        for text in ["pp", "pp=0", "pp=x", "=4", "pp=4,pp=2", "a b=2", "pp=4294967295,tp=4294967295", "p=-1"] {
            assert!(text.parse::<Mesh>().is_err(), "{text}");
        }
        let many = (0..9).map(|number| format!("d{number}=1")).collect::<Vec<_>>().join(",");
        assert!(many.parse::<Mesh>().is_err());
        assert_eq!("".parse::<Mesh>(), Ok(Mesh::default()));
    }
}
