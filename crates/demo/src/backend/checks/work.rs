//! Checks of copies between host and device, streams, and work recorded into graphs.

use super::tester::{Tester, random};
use crate::backend::{RawSlice, Result, Unary};
use crate::dtype::DType;

pub(super) fn check(tester: &Tester<'_>) {
    for (case, result) in [
        ("upload and download", transfers(tester)),
        ("upload_staged", staging(tester)),
        ("streams", streams(tester)),
        ("capture", capture(tester)),
    ] {
        match result {
            Ok(true) => {}
            Ok(false) => tester.fail(format!("{case}: wrong content")),
            Err(error) => tester.fail(format!("{case}: {error}")),
        }
    }
}

/// Checks copies between host and device. Returns false if a result is wrong.
fn transfers(tester: &Tester<'_>) -> Result<bool> {
    let mut is_equal = true;
    for len in [1, 1000, 3_000_001] {
        let tensor = tester.tensor(len, DType::U8);
        let bytes: Vec<u8> = (0..len).map(|index| (index * 7 % 251) as u8).collect();
        let mut from = bytes.clone();
        tester.backend.upload(&from, tensor)?;
        // The call has copied the bytes: this change has no effect.
        from.fill(0);
        let mut downloaded = vec![0; len];
        tester.backend.download(tensor, &mut downloaded)?;
        is_equal &= downloaded == bytes;
    }
    Ok(is_equal)
}

/// Checks copies from staging buffers. Returns false if a result is wrong.
fn staging(tester: &Tester<'_>) -> Result<bool> {
    const LEN: usize = 100_000;
    let mut buffer = tester.backend.staging_buffer(LEN)?;
    let mut is_equal = true;
    // The second turn uses a buffer whose copy may be in progress.
    let tensors = [LEN, LEN, 77].map(|len| tester.tensor(len, DType::U8));
    for (turn, tensor) in tensors.iter().enumerate() {
        buffer.bytes_mut()?.fill(turn as u8 + 1);
        tester.backend.upload_staged(&*buffer, *tensor)?;
    }
    for (turn, tensor) in tensors.iter().enumerate() {
        let mut downloaded = vec![0; tensor.len()];
        tester.backend.download(*tensor, &mut downloaded)?;
        is_equal &= downloaded.iter().all(|&byte| byte == turn as u8 + 1);
    }
    Ok(is_equal)
}

/// Checks the order of work on several streams. Returns false if a result is wrong.
fn streams(tester: &Tester<'_>) -> Result<bool> {
    const LEN: usize = 1_000_000;
    let (backend, kernels) = (tester.backend, tester.kernels);
    let ids = [backend.stream_id(0)?, backend.stream_id(1)?, backend.stream_id(2)?];
    let is_stable = backend.stream_id(1)? == ids[1];
    let [x, y] = [0, 1].map(|_| tester.tensor(LEN, DType::F32));
    backend.fill(x, 0.0)?;
    backend.synchronize()?;
    backend.set_stream(1)?;
    for _ in 0..20 {
        kernels.combine(1.0, x, Some((1.0, x)), x)?;
        backend.fill(x, 1.0)?;
    }
    backend.wait_stream(2, 1)?;
    backend.set_stream(2)?;
    kernels.combine(3.0, x, None, y)?;
    backend.wait_stream(0, 2)?;
    backend.set_stream(0)?;
    kernels.combine(2.0, y, None, y)?;
    let mut bytes = vec![0; LEN * 4];
    backend.download(y, &mut bytes)?;
    backend.synchronize()?;
    let is_equal = bytes.chunks_exact(4).all(|number| number == 6.0f32.to_ne_bytes());
    Ok(is_equal && is_stable && ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2])
}

/// Checks recorded work that is replayed. Returns false if a result is wrong.
fn capture(tester: &Tester<'_>) -> Result<bool> {
    let (backend, kernels) = (tester.backend, tester.kernels);
    let [x, y] = [0, 1].map(|_| tester.tensor(1000, DType::F32));
    let (x_address, y_address) = (x.address(), y.address());
    let upload = |values: &[f64]| {
        let bytes: Vec<u8> = values.iter().flat_map(|&value| (value as f32).to_ne_bytes()).collect();
        backend.upload(&bytes, x)
    };
    let first = random(DType::F32, 1000, 2.0);
    let second: Vec<f64> = first.iter().map(|x| x + 1.0).collect();
    // The default stream of a GPU cannot be recorded.
    backend.wait_stream(1, 0)?;
    backend.set_stream(1)?;
    upload(&first)?;
    let graph = backend.capture(Box::new(move || {
        // SAFETY: `x` and `y` are allocated as long as the test runs; this thread only uses them.
        let [x, y] = [x_address, y_address].map(|address| unsafe { RawSlice::new(address, 1000, DType::F32) });
        kernels.unary(Unary::Relu, x, y)?;
        kernels.combine(2.0, y, None, y)
    }))?;
    let mut is_equal = true;
    for values in [&first, &second, &first] {
        upload(values)?;
        graph.replay()?;
        let mut bytes = vec![0; 4000];
        backend.download(y, &mut bytes)?;
        let expected = values.iter().flat_map(|&x| (2.0 * x.max(0.0) as f32).to_ne_bytes());
        is_equal &= expected.eq(bytes);
    }
    backend.synchronize()?;
    backend.set_stream(0)?;
    Ok(is_equal)
}
