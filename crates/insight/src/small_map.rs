//! A map with few keys.

/// A map with few keys, such as one entry for each grouping. It searches a list, and takes a tenth
/// of the WebAssembly of a `BTreeMap`, which is compiled once for each pair of types.
#[derive(Clone, Debug)]
pub struct SmallMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Copy + PartialEq, V> SmallMap<K, V> {
    /// Returns the index of a key's entry; `None` if the key is missing.
    fn position(&self, key: K) -> Option<usize> {
        self.0.iter().position(|(known, _)| *known == key)
    }

    /// Returns the value of a key; `None` if the key is missing.
    pub fn get(&self, key: K) -> Option<&V> {
        self.position(key).map(|index| &self.0[index].1)
    }

    /// Returns the value of a key mutably; `None` if the key is missing.
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.position(key).map(|index| &mut self.0[index].1)
    }

    /// Returns the values of two different keys mutably; `None` if one of them is missing.
    pub fn pair_mut(&mut self, one: K, other: K) -> Option<[&mut V; 2]> {
        let positions = [self.position(one)?, self.position(other)?];
        let entries = self.0.get_disjoint_mut(positions).ok()?;
        Some(entries.map(|(_, value)| value))
    }

    /// Returns the value of a key; a missing key is added with the value that `create` returns.
    pub fn get_or_insert_with(&mut self, key: K, create: impl FnOnce() -> V) -> &mut V {
        let index = self.position(key).unwrap_or_else(|| {
            self.0.push((key, create()));
            self.0.len() - 1
        });
        &mut self.0[index].1
    }

    /// Removes a key with its value.
    pub fn remove(&mut self, key: K) {
        if let Some(index) = self.position(key) {
            self.0.swap_remove(index);
        }
    }

    /// Returns the values mutably, in no order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Returns the keys with their values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::SmallMap;

    #[test]
    fn values_are_found_by_their_keys() {
        let mut map = SmallMap::default();
        assert_eq!(map.iter().count(), 0);
        for key in ['a', 'b', 'c'] {
            assert_eq!(*map.get_or_insert_with(key, || key as u32), key as u32);
        }
        *map.get_mut('b').expect("it was inserted") = 7;
        assert_eq!(*map.get_or_insert_with('b', || 0), 7);
        map.remove('a');
        map.remove('z');
        assert_eq!((map.get('a'), map.get('b'), map.get('c')), (None, Some(&7), Some(&('c' as u32))));
        assert_eq!(map.iter().count(), 2);
    }
}
