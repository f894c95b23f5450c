//! A pool on a GPU: kernels, streams, threads, driver errors, cudarc and cuBLAS. Without a GPU the
//! tests print `SKIPPED` and pass.

use std::env;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::cublas::{self, CudaBlas, Gemm, GemmConfig};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use vramscope_collector::{AllocateError, CudaDevice, CudaError, CudaPool, PoolSlice, Settings};
use vramscope_pool::Device;
use vramscope_trace::{NullSink, StreamId};

use crate::gpu;

const MIB: u64 = 1 << 20;
/// Approximate GPU clock cycles in a millisecond.
const MILLISECOND: u64 = 1_500_000;

type Slice = PoolSlice<u32, CudaDevice>;

/// The kernels of `gpu/kernels.ptx`.
struct Kernels {
    fill: CudaFunction,
    check: CudaFunction,
    spin: CudaFunction,
}

fn grid(numbers: &Slice) -> (u32, LaunchConfig) {
    let count = u32::try_from(numbers.len()).unwrap();
    (count, LaunchConfig::for_num_elems(count))
}

impl Kernels {
    fn load(context: &Arc<CudaContext>) -> Self {
        let module = context.load_module(Ptx::from_src(include_str!("gpu/kernels.ptx"))).unwrap();
        let load = |name| module.load_function(name).unwrap();
        Self { fill: load("fill"), check: load("check"), spin: load("spin") }
    }

    /// Writes `value` and the numbers after it.
    fn fill(&self, stream: &CudaStream, to: &mut Slice, value: u32) {
        let (count, grid) = grid(to);
        let mut launch = stream.launch_builder(&self.fill);
        // SAFETY: The kernel takes these arguments and writes `count` numbers.
        unsafe { launch.arg(to).arg(&value).arg(&count).launch(grid) }.unwrap();
    }

    /// Counts the numbers that are not what [`fill`](Self::fill) wrote.
    fn check(&self, stream: &CudaStream, from: &Slice, value: u32, wrong: &mut Slice) {
        let (count, grid) = grid(from);
        let mut launch = stream.launch_builder(&self.check);
        // SAFETY: The kernel takes these arguments, reads `count` numbers, and adds to the first
        // of `wrong`.
        unsafe { launch.arg(from).arg(&value).arg(&count).arg(wrong).launch(grid) }.unwrap();
    }

    /// Keeps the stream busy.
    fn spin(&self, stream: &CudaStream, milliseconds: u64) {
        let (cycles, grid) =
            (milliseconds * MILLISECOND, LaunchConfig { block_dim: (1, 1, 1), ..LaunchConfig::for_num_elems(1) });
        let mut launch = stream.launch_builder(&self.spin);
        // SAFETY: The kernel takes this argument and touches no memory.
        unsafe { launch.arg(&cycles).launch(grid) }.unwrap();
    }
}

/// Creates a pool on the context's GPU that records nothing.
fn pool_in(context: &Arc<CudaContext>, settings: Settings) -> CudaPool {
    CudaPool::new(CudaDevice::from_context(context).unwrap(), settings, NullSink, || 0)
}

/// Allocates uninitialized memory.
fn uninitialized(pool: &CudaPool, stream: &Arc<CudaStream>, len: usize) -> Slice {
    // SAFETY: In every test a kernel writes the memory before anything reads it.
    unsafe { pool.on(stream).alloc(len) }.unwrap()
}

#[test]
fn missing_device_is_an_error() {
    let error = CudaDevice::new(usize::MAX).unwrap_err();
    assert!(matches!(error, CudaError::NoDriver | CudaError::NoDevice { .. }), "{error}");
}

#[test]
fn device_describes_itself() {
    let Some(_turn) = gpu::turn() else { return };
    let device = CudaDevice::new(0).unwrap();
    assert!(!device.name().is_empty() && device.total_bytes() > 1 << 30);
    assert_eq!(device.memory().total_bytes, device.total_bytes());
    assert_eq!(device.compute_capability(), device.context().compute_capability().unwrap());
}

#[test]
fn kernel_writes_are_visible_on_one_and_several_streams() {
    let Some(_turn) = gpu::turn() else { return };
    let context = CudaContext::new(0).unwrap();
    let (kernels, pool) = (Kernels::load(&context), pool_in(&context, Settings::default()));
    let mut wrong = pool.alloc_zeros::<u32>(1).unwrap();
    let check = |stream: &Arc<CudaStream>, wrong: &mut Slice| {
        for value in 0..100 {
            let mut numbers = uninitialized(&pool, stream, 1000 + 77 * value as usize);
            kernels.fill(stream, &mut numbers, value);
            kernels.check(stream, &numbers, value, wrong);
            kernels.check(stream, &numbers, value + 1, &mut pool.on(stream).alloc_zeros::<u32>(1).unwrap());
        }
    };
    check(&context.default_stream(), &mut wrong);
    assert_eq!(wrong.read(), Ok(vec![0]));
    let streams = [context.new_stream().unwrap(), context.new_stream().unwrap()];
    check(&streams[0], &mut wrong);
    check(&streams[1], &mut wrong);
    assert_eq!(wrong.read(), Ok(vec![0]));
    let mut numbers = uninitialized(&pool, &streams[0], 1000);
    kernels.fill(&streams[0], &mut numbers, 0);
    kernels.check(&streams[1], &numbers, 1, &mut wrong);
    assert_eq!(wrong.read(), Ok(vec![1000]), "the kernel counts wrong numbers");
}

#[test]
fn memory_is_reused_only_after_its_last_use_on_another_stream() {
    let Some(_turn) = gpu::turn() else { return };
    let context = CudaContext::new(0).unwrap();
    let (kernels, pool) = (Kernels::load(&context), pool_in(&context, Settings::default()));
    let (own, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    for is_recorded in [false, true] {
        let mut wrong = pool.on(&other).alloc_zeros::<u32>(1).unwrap();
        let (mut last_address, mut reuses) = (0, 0);
        for round in 0..200 {
            let mut numbers = uninitialized(&pool, &own, 1 << 20);
            reuses += u32::from(numbers.address() == last_address);
            last_address = numbers.address();
            kernels.fill(&own, &mut numbers, round);
            kernels.spin(&other, 1);
            kernels.check(&other, &numbers, round, &mut wrong);
            if is_recorded {
                numbers.record_stream(&other).unwrap();
            }
        }
        assert_eq!(wrong.read(), Ok(vec![0]), "a later round wrote memory that an earlier round still read");
        assert!(is_recorded || reuses > 100, "the memory was reused {reuses} times");
    }
}

#[test]
fn memory_of_a_dropped_stream_is_usable() {
    let Some(_turn) = gpu::turn() else { return };
    let context = CudaContext::new(0).unwrap();
    let (kernels, pool) = (Kernels::load(&context), pool_in(&context, Settings::default()));
    let own = context.default_stream();
    let mut wrong = pool.on(&own).alloc_zeros::<u32>(1).unwrap();
    let use_other = |round: u32, wrong: &mut Slice, with_memory: bool| {
        let other = context.new_stream().unwrap();
        let mut numbers = uninitialized(&pool, &own, 1 << 20);
        kernels.fill(&own, &mut numbers, round);
        let buffer = with_memory.then(|| {
            let mut buffer = uninitialized(&pool, &other, 1 << 16);
            kernels.fill(&other, &mut buffer, round);
            buffer
        });
        kernels.spin(&other, 2);
        kernels.check(&other, &numbers, round, wrong);
        if let Some(buffer) = &buffer {
            kernels.check(&other, buffer, round, wrong);
        }
        // The buffers are dropped after the stream, while its work still runs.
        drop(other);
    };
    for round in 0..10 {
        use_other(round, &mut wrong, false);
    }
    assert!(!context.is_in_multi_stream_mode());
    for round in 0..10 {
        use_other(round, &mut wrong, true);
    }
    assert_eq!(wrong.read(), Ok(vec![0]));
}

#[test]
fn threads_and_streams_share_a_pool() {
    let Some(_turn) = gpu::turn() else { return };
    const THREADS: u32 = 8;
    // Tools that check every access set fewer.
    let operations = env::var("VRAMSCOPE_TEST_OPERATIONS").map_or(1_000_000, |number| number.parse::<u32>().unwrap());
    let context = CudaContext::new(0).unwrap();
    let (kernels, pool) = (Kernels::load(&context), pool_in(&context, Settings::default()));
    let streams: Vec<_> = (0..4).map(|_| context.new_stream().unwrap()).collect();
    let work = |thread: u32| {
        let stream = &streams[thread as usize % 4];
        let other = &streams[(thread as usize + 1) % 4];
        let mut wrong = pool.on(stream).alloc_zeros::<u32>(1).unwrap();
        let (mut held, mut random) = (Vec::<(u32, Slice)>::new(), fastrand::Rng::with_seed(thread.into()));
        for operation in 0..operations / THREADS {
            if held.len() < 8 || held.len() < 64 && random.bool() {
                let mut numbers = uninitialized(&pool, stream, random.usize(1..=1 << 14));
                let value = thread << 28 | operation;
                kernels.fill(stream, &mut numbers, value);
                held.push((value, numbers));
            } else {
                let (value, numbers) = held.swap_remove(random.usize(..held.len()));
                let reader = if random.u32(..8) == 0 { other } else { stream };
                kernels.check(reader, &numbers, value, &mut wrong);
            }
        }
        assert_eq!(wrong.read(), Ok(vec![0]), "another thread wrote to the buffers of thread {thread}");
    };
    let started = Instant::now();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
    eprintln!("{operations} operations in {:.1} s", started.elapsed().as_secs_f64());
    context.synchronize().unwrap();
    pool.empty_cache().unwrap();
    assert_eq!((pool.memory_allocated(), pool.memory_reserved()), (0, 0));
}

#[test]
fn pool_continues_after_out_of_memory() {
    let Some(_turn) = gpu::turn() else { return };
    let context = CudaContext::new(0).unwrap();
    let (kernels, stream) = (Kernels::load(&context), context.default_stream());
    let total = CudaDevice::from_context(&context).unwrap().total_bytes();
    let fraction = (2_u64 << 30) as f64 / total as f64;
    let settings = Settings { per_process_memory_fraction: fraction, ..Settings::default() };
    for settings in [Settings { expandable_segments: true, ..settings.clone() }, settings] {
        let pool = pool_in(&context, settings);
        let mut held = Vec::new();
        let error = loop {
            // SAFETY: The memory is never read.
            match unsafe { pool.on(&stream).alloc::<u32>(64 << 20) } {
                Ok(numbers) => held.push(numbers),
                Err(error) => break error,
            }
            assert!(held.len() <= 8, "buffers of 256 MiB exceed the limit of 2 GiB");
        };
        assert!(matches!(error, AllocateError::OutOfMemory(_)), "{error}");
        assert!(held.len() >= 7, "only {} buffers of 256 MiB fit into 2 GiB: {error}", held.len());
        held.truncate(2);
        let (mut large, mut wrong) = (uninitialized(&pool, &stream, 256 << 20), pool.alloc_zeros::<u32>(1).unwrap());
        kernels.fill(&stream, &mut large, 7);
        kernels.check(&stream, &large, 7, &mut wrong);
        assert_eq!(wrong.read(), Ok(vec![0]));
        assert!(pool.memory_stats().num_ooms == 1);
    }
    // The driver rejects this request, and must work afterwards.
    let pool = pool_in(&context, Settings::default());
    // SAFETY: The request fails, so no memory is read.
    let error = unsafe { pool.on(&stream).alloc::<u8>(total as usize + (1 << 30)) }.unwrap_err();
    let AllocateError::OutOfMemory(error) = error else { panic!("{error}") };
    assert!(error.device_free_bytes > 0 && error.device_total_bytes == total);
    assert_eq!(pool.clone_htod(&[1u32, 2, 3]).unwrap().read(), Ok(vec![1, 2, 3]));
}

#[test]
fn expandable_segments_grow_and_shrink() {
    let Some(_turn) = gpu::turn() else { return };
    let context = CudaContext::new(0).unwrap();
    let (kernels, stream) = (Kernels::load(&context), context.new_stream().unwrap());
    let pool = pool_in(&context, Settings { expandable_segments: true, ..Settings::default() });
    let free = || context.mem_get_info().unwrap().0 as u64;
    let mut wrong = pool.on(&stream).alloc_zeros::<u32>(1).unwrap();
    let before = free();
    for _ in 0..3 {
        let mut held = Vec::new();
        for value in 0..40 {
            // 30 MiB each, on pages of 20 MiB.
            let mut numbers = uninitialized(&pool, &stream, 30 << 18);
            kernels.fill(&stream, &mut numbers, value);
            held.push(numbers);
        }
        let first = held[0].address();
        let is_next = |(index, numbers): (usize, &Slice)| numbers.address() == first + index as u64 * 30 * MIB;
        assert!(held.iter().enumerate().all(is_next), "the buffers are in one segment");
        assert!(before - free() >= 1200 * MIB);
        for (value, numbers) in held.iter().enumerate() {
            kernels.check(&stream, numbers, value as u32, &mut wrong);
        }
        // Every second buffer is dropped. Each leaves a hole with at least one whole page, which
        // `empty_cache` unmaps.
        let mut index = 0;
        held.retain(|_| {
            index += 1;
            index % 2 == 0
        });
        pool.empty_cache().unwrap();
        let shrunk = before - free();
        assert!(shrunk < 1100 * MIB, "{shrunk} bytes are still mapped");
        for (index, numbers) in held.iter().enumerate() {
            kernels.check(&stream, numbers, 2 * index as u32 + 1, &mut wrong);
        }
        held.clear();
        pool.empty_cache().unwrap();
        assert!(before.abs_diff(free()) < 64 * MIB);
        assert_eq!(wrong.read(), Ok(vec![0]));
    }
}

#[test]
fn cudarc_accepts_pool_slices() {
    let Some(_turn) = gpu::turn() else { return };
    let context = CudaContext::new(0).unwrap();
    let pool = pool_in(&context, Settings::default());
    let check = |stream: &Arc<CudaStream>| {
        let mut numbers = pool.on(stream).clone_htod(&[1u32, 2, 3, 4, 5]).unwrap();
        assert_eq!(stream.clone_dtoh(&numbers).unwrap(), [1, 2, 3, 4, 5]);
        stream.memcpy_htod(&[6, 7, 8], &mut numbers).unwrap();
        let mut copied = pool.on(stream).alloc_zeros::<u32>(5).unwrap();
        stream.memcpy_dtod(&numbers, &mut copied).unwrap();
        assert_eq!(copied.read(), Ok(vec![6, 7, 8, 4, 5]));
        stream.memset_zeros(&mut numbers.as_view_mut().slice_mut(1..3)).unwrap();
        assert_eq!(stream.clone_dtoh(&numbers.as_view().slice(..4)).unwrap(), [6, 0, 0, 4]);
        stream.memset_zeros(&mut copied).unwrap();
        assert_eq!(copied.read(), Ok(vec![0; 5]));
        assert_eq!(pool.on(stream).clone_dtod(&numbers).unwrap().read(), Ok(vec![6, 0, 0, 4, 5]));
        numbers.write(&[9; 5]).unwrap();
        let copy = stream.clone_dtod(&numbers).unwrap();
        assert_eq!(stream.clone_dtoh(&copy).unwrap(), [9; 5], "cudarc copies into its own slice");
        let empty = pool.on(stream).alloc_zeros::<f32>(0).unwrap();
        assert_eq!(empty.read(), Ok(vec![]));
    };
    check(&context.default_stream());
    check(&context.new_stream().unwrap());
}

#[test]
fn cublas_accepts_pool_slices() {
    let Some(_turn) = gpu::turn() else { return };
    // SAFETY: Loading the library runs its initializers, which are meant to run in any program.
    if !unsafe { cublas::sys::is_culib_present() } {
        return gpu::skip("cuBLAS is not installed");
    }
    const N: usize = 64;
    let context = CudaContext::new(0).unwrap();
    let pool = pool_in(&context, Settings::default());
    for stream in [context.default_stream(), context.new_stream().unwrap()] {
        let number = |index: usize, step: usize| (index * step % 7) as f32;
        let [a, b] = [3, 5].map(|step| (0..N * N).map(|index| number(index, step)).collect::<Vec<f32>>());
        let (on, blas) = (pool.on(&stream), CudaBlas::new(Arc::clone(&stream)).unwrap());
        let (left, right) = (on.clone_htod(&a).unwrap(), on.clone_htod(&b).unwrap());
        let mut product = on.alloc_zeros::<f32>(N * N).unwrap();
        let n = N as i32;
        let not_transposed = cublas::sys::cublasOperation_t::CUBLAS_OP_N;
        let config = GemmConfig {
            transa: not_transposed,
            transb: not_transposed,
            m: n,
            n,
            k: n,
            alpha: 1.0,
            lda: n,
            ldb: n,
            beta: 0.0,
            ldc: n,
        };
        // SAFETY: All three are matrices of N by N numbers.
        unsafe { blas.gemm(config, &left, &right, &mut product) }.unwrap();
        let product = product.read().unwrap();
        // cuBLAS stores matrices by column.
        let expected = |row: usize, column: usize| (0..N).map(|k| a[k * N + row] * b[column * N + k]).sum::<f32>();
        assert!((0..N * N).all(|index| product[index] == expected(index % N, index / N)));
    }
}

#[test]
fn stream_events_follow_earlier_work() {
    let Some(_turn) = gpu::turn() else { return };
    let context = CudaContext::new(0).unwrap();
    let (kernels, stream) = (Kernels::load(&context), context.new_stream().unwrap());
    let mut device = CudaDevice::from_context(&context).unwrap();
    let (busy, idle) = (StreamId(stream.cu_stream() as u64), StreamId(0));
    for _ in 0..3 {
        let started = Instant::now();
        kernels.spin(&stream, 200);
        let (late, soon) = (device.record_event(busy).unwrap(), device.record_event(idle).unwrap());
        assert_eq!(device.wait_for(soon), Ok(()));
        assert_eq!(device.has_passed(late), Ok(false), "the kernel takes longer");
        assert_eq!(device.wait_for(late), Ok(()));
        // The GPU takes at least this long, however busy the machine is.
        assert!(started.elapsed() > Duration::from_millis(20));
        assert!(device.has_passed(late).is_err(), "waiting released the event");
    }
}

#[test]
fn allocation_works_during_graph_capture() {
    let Some(_turn) = gpu::turn() else { return };
    let context = CudaContext::new(0).unwrap();
    let (stream, mut device) = (context.new_stream().unwrap(), CudaDevice::from_context(&context).unwrap());
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let segment = device.reserve(20 * MIB);
    let addresses = device.reserve_addresses(40 * MIB);
    let mapped = addresses.clone().and_then(|start| device.map(start, 20 * MIB, 20 * MIB));
    stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap();
    assert_eq!(mapped, Ok(()));
    assert_eq!(device.release(segment.unwrap(), 20 * MIB), Ok(()));
    assert_eq!(device.unmap(addresses.unwrap(), 20 * MIB, 20 * MIB, StreamId(0)), Ok(()));
}

#[test]
fn dropped_device_releases_all_memory() {
    let Some(_turn) = gpu::turn() else { return };
    let context = CudaContext::new(0).unwrap();
    let before = context.mem_get_info().unwrap().0 as u64;
    let mut device = CudaDevice::from_context(&context).unwrap();
    device.reserve(600 * MIB).unwrap();
    let start = device.reserve_addresses(2000 * MIB).unwrap();
    device.map(start, 600 * MIB, 20 * MIB).unwrap();
    device.record_event(StreamId(0)).unwrap();
    assert!(before - device.memory().free_bytes >= 1200 * MIB);
    drop(device);
    assert!(before.abs_diff(context.mem_get_info().unwrap().0 as u64) < 64 * MIB);
}

#[test]
fn usage_distinguishes_this_process_from_others() {
    let Some(_turn) = gpu::turn() else { return };
    let mut device = CudaDevice::new(0).unwrap();
    let before = device.sample();
    device.reserve(1 << 30).unwrap();
    let after = device.sample();
    eprintln!("{} when opened: {before:?}; with 1 GiB more: {after:?}", device.name());
    let total = |sample: vramscope_collector::DeviceUsage| {
        sample.process_bytes + sample.other_processes_bytes + sample.free_bytes
    };
    assert_eq!((total(before), total(after)), (device.total_bytes(), device.total_bytes()));
    let grown = after.process_bytes - before.process_bytes;
    assert!(grown.abs_diff(1 << 30) < 64 * MIB, "this process grew by {grown} bytes");
    assert!(after.other_processes_bytes.abs_diff(before.other_processes_bytes) < 64 * MIB);
}
