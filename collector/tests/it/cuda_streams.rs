//! GPU buffers that several streams use: work queued before a buffer is dropped still sees its old
//! contents. Without a GPU the tests print `SKIPPED` and pass.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use vramscope_collector::{
    AllocateError, CudaDevice, CudaPool, DeviceError, FreeError, PoolSlice, Settings, graph_pool_handle,
};
use vramscope_trace::NullSink;

use crate::gpu;

/// Approximate GPU clock cycles in a millisecond.
const MILLISECOND: u64 = 1_500_000;
const LEN: usize = 1 << 18;

type Slice = PoolSlice<u32, CudaDevice>;

struct Gpu {
    context: Arc<CudaContext>,
    pool: CudaPool,
    spin: CudaFunction,
    fill: CudaFunction,
    check: CudaFunction,
}

impl Gpu {
    fn open() -> Self {
        let context = CudaContext::new(0).unwrap();
        let module = context.load_module(Ptx::from_src(include_str!("gpu/kernels.ptx"))).unwrap();
        let load = |name| module.load_function(name).unwrap();
        let (spin, fill, check) = (load("spin"), load("fill"), load("check"));
        let pool = CudaPool::new(CudaDevice::from_context(&context).unwrap(), Settings::default(), NullSink, || 0);
        Self { context, pool, spin, fill, check }
    }

    fn stream(&self) -> Arc<CudaStream> {
        self.context.new_stream().unwrap()
    }

    /// Keeps the stream busy.
    fn spin(&self, stream: &CudaStream, milliseconds: u64) {
        let one = LaunchConfig { block_dim: (1, 1, 1), ..LaunchConfig::for_num_elems(1) };
        // SAFETY: The kernel takes this argument and touches no memory.
        unsafe { stream.launch_builder(&self.spin).arg(&(milliseconds * MILLISECOND)).launch(one) }.unwrap();
    }

    /// Writes `value` and the numbers after it.
    fn fill(&self, stream: &CudaStream, to: &mut Slice, value: u32) {
        let (count, grid) = (LEN as u32, LaunchConfig::for_num_elems(LEN as u32));
        let mut launch = stream.launch_builder(&self.fill);
        // SAFETY: The kernel takes these arguments and writes `count` numbers.
        unsafe { launch.arg(to).arg(&value).arg(&count).launch(grid) }.unwrap();
    }

    /// Counts the numbers that are not what [`fill`](Self::fill) wrote.
    fn check(&self, stream: &CudaStream, from: &Slice, value: u32, wrong: &mut Slice) {
        let (count, grid) = (LEN as u32, LaunchConfig::for_num_elems(LEN as u32));
        let mut launch = stream.launch_builder(&self.check);
        // SAFETY: The kernel takes these arguments, reads `count` numbers, and adds to the first of
        // `wrong`.
        unsafe { launch.arg(from).arg(&value).arg(&count).arg(wrong).launch(grid) }.unwrap();
    }

    /// Allocates a buffer and fills it with `value` and the numbers after it, on `stream`.
    fn numbers(&self, stream: &Arc<CudaStream>, value: u32) -> Slice {
        // SAFETY: The kernel below writes it before anything reads it.
        let mut numbers = unsafe { self.pool.on(stream).alloc(LEN) }.unwrap();
        self.fill(stream, &mut numbers, value);
        numbers
    }

    /// Allocates a zeroed buffer on `stream`.
    fn zeros(&self, stream: &Arc<CudaStream>) -> Slice {
        self.pool.on(stream).alloc_zeros(LEN).unwrap()
    }
}

fn numbers_from(value: u32) -> Vec<u32> {
    (value..).take(LEN).collect()
}

/// Drops a buffer and overwrites its memory through a new one.
fn replace(gpu: &Gpu, stream: &Arc<CudaStream>, old: Slice) {
    let address = old.address();
    drop(old);
    let new = gpu.numbers(stream, 1 << 30);
    assert_eq!(new.address(), address, "the pool reuses the memory at once");
}

#[test]
fn memory_is_reused_only_after_all_copies() {
    let Some(_turn) = gpu::turn() else { return };
    let gpu = Gpu::open();
    let (own, slow, fast) = (gpu.stream(), gpu.stream(), gpu.stream());
    for (round, in_parts) in [(0, false), (1, true), (2, false), (3, true)] {
        let numbers = gpu.numbers(&own, round);
        let (mut first, mut second, mut third) = (gpu.zeros(&slow), gpu.zeros(&fast), gpu.zeros(&own));
        gpu.context.synchronize().unwrap();
        gpu.spin(&slow, 100);
        // The last reader finishes long before the first.
        for (stream, to) in [(&slow, &mut first), (&fast, &mut second), (&own, &mut third)] {
            if in_parts {
                let half = LEN / 2;
                stream.memcpy_dtod(&numbers.as_view().slice(..half), &mut to.as_view_mut().slice_mut(..half)).unwrap();
                stream.memcpy_dtod(&numbers.as_view().slice(half..), &mut to.as_view_mut().slice_mut(half..)).unwrap();
            } else {
                stream.memcpy_dtod(&numbers, to).unwrap();
            }
        }
        replace(&gpu, &own, numbers);
        for copy in [first, second, third] {
            assert_eq!(copy.read().unwrap(), numbers_from(round), "in parts: {in_parts}");
        }
    }
}

#[test]
fn kernels_accept_views_and_wait_for_their_writers() {
    let Some(_turn) = gpu::turn() else { return };
    let gpu = Gpu::open();
    let own = gpu.context.default_stream();
    let half = (LEN / 2) as u32;
    let check = |reader: &Arc<CudaStream>, value: u32| {
        let (mut numbers, mut wrong) = (gpu.zeros(&own), gpu.zeros(&own));
        gpu.spin(&own, 20);
        let mut all = numbers.as_view_mut();
        let (mut to, grid) = (all.slice_mut(LEN / 2..), LaunchConfig::for_num_elems(half));
        let mut launch = own.launch_builder(&gpu.fill);
        // SAFETY: The kernel takes these arguments and writes `half` numbers.
        unsafe { launch.arg(&mut to).arg(&value).arg(&half).launch(grid) }.unwrap();
        let (from, mut count) = (all.slice(LEN / 2..), wrong.as_view_mut());
        let mut launch = reader.launch_builder(&gpu.check);
        // SAFETY: The kernel takes these arguments, reads `half` numbers, and adds to the first of
        // `wrong`.
        unsafe { launch.arg(&from).arg(&value).arg(&half).arg(&mut count).launch(grid) }.unwrap();
        assert_eq!(wrong.read().unwrap()[0], 0);
        let numbers = numbers.read().unwrap();
        assert_eq!((numbers[LEN / 2 - 1], numbers[LEN / 2], numbers[LEN - 1]), (0, value, value + half - 1));
    };
    check(&own, 5);
    let other = gpu.stream();
    check(&other, 7);
    drop(other);
    check(&own, 9);
}

#[test]
fn memory_is_reused_only_after_all_recorded_kernels() {
    let Some(_turn) = gpu::turn() else { return };
    let gpu = Gpu::open();
    let (own, slow, fast) = (gpu.stream(), gpu.stream(), gpu.stream());
    let (mut late, mut soon) = (gpu.zeros(&slow), gpu.zeros(&fast));
    for round in 0..10 {
        let numbers = gpu.numbers(&own, round);
        gpu.spin(&slow, 20);
        gpu.check(&slow, &numbers, round, &mut late);
        numbers.record_stream(&slow).unwrap();
        gpu.check(&fast, &numbers, round, &mut soon);
        drop(numbers);
        let _other = gpu.numbers(&own, 1 << 30);
    }
    assert_eq!((late.read().unwrap()[0], soon.read().unwrap()[0]), (0, 0));
}

#[test]
fn writes_wait_for_all_copies() {
    let Some(_turn) = gpu::turn() else { return };
    let gpu = Gpu::open();
    let (own, slow, fast) = (gpu.stream(), gpu.stream(), gpu.stream());
    for (round, by_kernel) in [(0, false), (1, true), (2, false), (3, true)] {
        let mut numbers = gpu.numbers(&own, round);
        let (mut first, mut second) = (gpu.zeros(&slow), gpu.zeros(&fast));
        gpu.context.synchronize().unwrap();
        gpu.spin(&slow, 100);
        slow.memcpy_dtod(&numbers, &mut first).unwrap();
        fast.memcpy_dtod(&numbers, &mut second).unwrap();
        if by_kernel {
            gpu.fill(&fast, &mut numbers, 1 << 30);
        } else {
            fast.memset_zeros(&mut numbers).unwrap();
        }
        let written = if by_kernel { numbers_from(1 << 30) } else { vec![0; LEN] };
        assert_eq!(numbers.read().unwrap(), written);
        assert_eq!(first.read().unwrap(), numbers_from(round), "by a kernel: {by_kernel}");
        assert_eq!(second.read().unwrap(), numbers_from(round), "by a kernel: {by_kernel}");
    }
}

#[test]
fn copies_on_dropped_streams_are_waited_for() {
    let Some(_turn) = gpu::turn() else { return };
    let gpu = Gpu::open();
    let own = gpu.context.default_stream();
    for (round, is_dropped) in [(0, true), (1, false), (2, true), (3, false)] {
        let mut numbers = gpu.numbers(&own, round);
        let mut copies = [(); 3].map(|()| gpu.zeros(&own));
        gpu.context.synchronize().unwrap();
        // Created together: creating the first additional stream waits for all queued work.
        let others = [100, 50, 0].map(|milliseconds| (gpu.stream(), milliseconds));
        for (copy, (other, milliseconds)) in copies.iter_mut().zip(&others) {
            gpu.spin(other, *milliseconds);
            other.memcpy_dtod(&numbers, copy).unwrap();
        }
        drop(others);
        assert!(!gpu.context.is_in_multi_stream_mode());
        if is_dropped {
            replace(&gpu, &own, numbers);
        } else {
            own.memset_zeros(&mut numbers).unwrap();
        }
        for copy in copies {
            assert_eq!(copy.read().unwrap(), numbers_from(round), "dropped: {is_dropped}");
        }
    }
}

#[test]
fn copies_by_another_context_object_are_waited_for() {
    let Some(_turn) = gpu::turn() else { return };
    let gpu = Gpu::open();
    let own = gpu.stream();
    let other = CudaContext::new(0).unwrap().new_stream().unwrap();
    for round in 0..3 {
        let numbers = gpu.numbers(&own, round);
        let mut copy = other.alloc_zeros::<u32>(LEN).unwrap();
        gpu.spin(&own, 20);
        gpu.spin(&other, 50);
        other.memcpy_dtod(&numbers, &mut copy).unwrap();
        replace(&gpu, &own, numbers);
        assert_eq!(other.clone_dtoh(&copy).unwrap(), numbers_from(round));
    }
}

#[test]
fn stream_of_another_context_is_rejected() {
    let Some(_turn) = gpu::turn() else { return };
    let Gpu { context, pool, .. } = Gpu::open();
    let buffer = pool.alloc_zeros::<u32>(4).unwrap();
    let same_gpu = CudaContext::new(0).unwrap();
    let foreign_streams = [same_gpu.new_stream().unwrap(), same_gpu.default_stream(), context.per_thread_stream()];
    for stream in &foreign_streams {
        let allocated = pool.on(stream).alloc_zeros::<u32>(4);
        assert!(matches!(allocated, Err(AllocateError::Device(DeviceError::Failed(_)))), "{allocated:?}");
        let recorded = buffer.record_stream(stream);
        assert!(matches!(recorded, Err(FreeError::Device(DeviceError::Failed(_)))), "{recorded:?}");
        let graph = graph_pool_handle();
        let selected = pool.begin_allocate_stream_to_pool(graph, stream);
        assert!(matches!(selected, Err(AllocateError::Device(DeviceError::Failed(_)))), "{selected:?}");
        assert!(pool.end_allocate_to_pool(graph).is_err(), "no pool is selected");
    }
    assert_eq!(pool.memory_allocated(), 512);
    assert_eq!(buffer.record_stream(&context.new_stream().unwrap()), Ok(()));
}
