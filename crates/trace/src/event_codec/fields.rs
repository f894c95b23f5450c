//! Encodes the fields that events have in common with annotations, full states and the index.

use crate::event::{AnnotationStage, DeviceId, MempoolId, PoolKey, PoolKind};
use crate::varint::{self, PayloadError, Reader};

/// Appends a pool's key: one byte with its size class and whether it is private, then the private
/// pool's id if it is.
pub(crate) fn put_pool(out: &mut Vec<u8>, pool: PoolKey) {
    let private = pool.owner != MempoolId::default();
    out.push(u8::from(pool.kind == PoolKind::Large) | u8::from(private) << 1);
    if private {
        varint::put(out, pool.owner.0);
        varint::put(out, pool.owner.1);
    }
}

/// Reads the pool's key that [`put_pool`] wrote.
pub(crate) fn read_pool(reader: &mut Reader<'_>) -> Result<PoolKey, PayloadError> {
    let bits = reader.byte()?;
    if bits > 3 {
        return Err(reader.payload_error("unknown pool kind"));
    }
    let kind = if bits & 1 == 0 { PoolKind::Small } else { PoolKind::Large };
    let owner = if bits & 2 == 0 { MempoolId::default() } else { MempoolId(reader.u64()?, reader.u64()?) };
    Ok(PoolKey { kind, owner })
}

/// The stages of marks and annotations, in the order of the codes that a recording stores.
const STAGES: [AnnotationStage; 3] = [AnnotationStage::Instant, AnnotationStage::Begin, AnnotationStage::End];

/// Returns the byte that a recording stores for the stage of a mark or annotation.
pub(crate) const fn stage_code(stage: AnnotationStage) -> u8 {
    stage as u8
}

/// Reads the stage of a mark or annotation that [`stage_code`] encoded; an error if the byte is
/// unknown.
pub(crate) fn read_stage(reader: &mut Reader<'_>) -> Result<AnnotationStage, PayloadError> {
    let stage = STAGES.get(usize::from(reader.byte()?)).copied();
    stage.ok_or_else(|| reader.payload_error("unknown stage of a mark or annotation"))
}

/// Reads a device's number; an error if it does not fit in 16 bits.
pub(crate) fn read_device(reader: &mut Reader<'_>) -> Result<DeviceId, PayloadError> {
    let number = reader.u64()?;
    u16::try_from(number).map(DeviceId).map_err(|_| reader.payload_error("device number above 16 bits"))
}
