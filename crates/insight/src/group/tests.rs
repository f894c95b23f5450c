//! Tests of groups and their names.

use vramscope_trace::{Allocation, Block, Category, MempoolId, PoolKey, PoolKind, SiteId, StreamId};

use super::{GroupBy, Grouping};
use crate::frames::WhyNoStack;
use crate::frames::test_definitions::TestSites;

/// Returns a live block that a site requested.
fn block(site: SiteId) -> Block {
    Block {
        address: 0,
        size: 512,
        requested: 400,
        stream: StreamId(0),
        pool: PoolKey::default(),
        site,
        pending_free: false,
        since_event: 10,
        since_ns: 0,
    }
}

/// Returns the allocation of a block.
fn allocation(block: &Block) -> Allocation {
    Allocation {
        address: block.address,
        size: block.size,
        requested: block.requested,
        stream: block.stream,
        pool: block.pool,
        site: block.site,
        first_moment: block.since_event + 1,
        start_observed: block.since_event > 0,
        allocated_until: None,
        active_until: None,
        end_observed: false,
    }
}

/// Returns the name of a block's group, and checks that its allocation is in the same group.
#[track_caller]
fn name(sites: &TestSites, by: GroupBy, block: &Block) -> String {
    let mut grouping = Grouping::new(by, 0);
    grouping.update(sites.definitions());
    let group = grouping.group_of(block);
    assert_eq!(grouping.group_of_allocation(&allocation(block)), group);
    assert_eq!(grouping.group_of(block), group);
    let name = grouping.group_name(sites.definitions(), group);
    assert_eq!(*grouping.cached_name(sites.definitions(), group), *name);
    assert_eq!(*grouping.cached_name(sites.definitions(), group), *name);
    name
}

#[test]
fn names_lead_back_to_the_grouping() {
    for by in GroupBy::ALL {
        assert_eq!(GroupBy::from_name(by.name()), Some(by));
    }
    assert_eq!(GroupBy::from_name("Site"), None);
}

#[test]
fn each_grouping_names_its_groups() {
    let mut sites = TestSites::default();
    let adam = sites.site(
        "step/optimizer",
        Category::Unknown,
        &[("/home/me/train.py", 66, "gpt_step"), ("/x/site-packages/torch/optim/adam.py", 182, "_init_group")],
    );
    for (by, expected) in [
        (GroupBy::Site, "step/optimizer · train.py:66 · adam.py:182 _init_group"),
        (GroupBy::Stack, "train.py:66 · adam.py:182 _init_group"),
        (GroupBy::Function, "gpt_step (train.py)"),
        (GroupBy::Line, "train.py:66"),
        (GroupBy::File, "/home/me/train.py"),
        (GroupBy::Module, "step/optimizer"),
        (GroupBy::Stream, "stream 0 (default)"),
        (GroupBy::Pool, "default, small"),
        (GroupBy::Size, "512 B–1 KiB"),
        (GroupBy::Phase, "optimizer"),
        (GroupBy::Operation, "adam._init_group"),
    ] {
        assert_eq!(name(&sites, by, &block(adam)), expected, "{by:?}");
    }
    let mut other = block(adam);
    other.pool = PoolKey { kind: PoolKind::Large, owner: MempoolId(0, 1) };
    (other.stream, other.size) = (StreamId(7), 3 << 20);
    assert_eq!(name(&sites, GroupBy::Pool, &other), "private (0, 1), large");
    assert_eq!(name(&sites, GroupBy::Stream, &other), "stream 7");
    assert_eq!(name(&sites, GroupBy::Size, &other), "2–4 MiB");
    for (size, expected) in [(0, "0 B"), (1, "1–2 B"), (1 << 63, "8 EiB or more"), (1 << 20, "1–2 MiB")] {
        assert_eq!(name(&sites, GroupBy::Size, &Block { size, ..other }), expected);
    }
}

#[test]
fn groups_without_a_stack_say_why() {
    let mut sites = TestSites::default();
    let unknown = block(SiteId(0));
    let older = Block { since_event: 0, ..unknown };
    assert_eq!(name(&sites, GroupBy::Line, &unknown), "no stacks recorded");
    assert_eq!(name(&sites, GroupBy::Module, &unknown), "no module recorded");
    sites.stack(&[("train.py", 3, "main")]);
    for by in [GroupBy::Site, GroupBy::Stack, GroupBy::Function, GroupBy::Line, GroupBy::File] {
        assert_eq!(name(&sites, by, &unknown), "backward pass (no line recorded)");
        assert_eq!(name(&sites, by, &older), "allocated before recording began");
    }
    assert_eq!(name(&sites, GroupBy::Category, &unknown), "backward pass (no line recorded)");
    assert_eq!(name(&sites, GroupBy::Phase, &unknown), "backward");
    assert_eq!(name(&sites, GroupBy::Category, &older), "allocated before recording began");
    assert_eq!(name(&sites, GroupBy::Phase, &older), "allocated before recording began");
    assert_eq!(name(&sites, GroupBy::Line, &block(SiteId(u32::MAX))), "backward pass (no line recorded)");
}

#[test]
fn backward_operations_are_functions_without_a_line() {
    let mut sites = TestSites::default();
    let frames = [("", 0, "torch::autograd::generated::MmBackward0::apply(X&&)"), ("", 0, "at::empty(long)")];
    let site = sites.stack(&frames);
    assert_eq!(name(&sites, GroupBy::Function, &block(site)), "torch::autograd::generated::MmBackward0::apply");
    assert_eq!(name(&sites, GroupBy::Line, &block(site)), "MmBackward0");
    assert_eq!(name(&sites, GroupBy::File, &block(site)), "MmBackward0");
    let frames = [("/src/libstdc++-v3/src/c++11/thread.cc", 82, "execute_native_thread_routine")];
    let site = sites.stack(&frames);
    assert_eq!(name(&sites, GroupBy::Line, &block(site)), "library code (no line recorded)");
    let frames = [("/usr/lib/python3.12/threading.py", 1073, "run"), ("/x/site-packages/lib/load.py", 5, "load_batch")];
    let site = sites.stack(&frames);
    assert_eq!(name(&sites, GroupBy::Line, &block(site)), "load_batch (load.py)");
}

#[test]
fn requests_of_the_backward_pass_name_the_lines_that_call_it() {
    let mut sites = TestSites::default();
    let unknown = block(SiteId(0));
    let engine = ("/x/site-packages/torch/autograd/__init__.py", 231, "_make_grads");
    let tensor = ("/x/site-packages/torch/_tensor.py", 630, "backward");
    let mut grouping = Grouping::new(GroupBy::Line, 0);
    let mut expect = |sites: &TestSites, expected: &str| {
        grouping.update(sites.definitions());
        let group = grouping.group_of(&unknown);
        assert_eq!(&*grouping.cached_name(sites.definitions(), group), expected);
    };
    sites.stack(&[("train.py", 80, "train")]);
    expect(&sites, "backward pass (no line recorded)");
    sites.stack(&[("train.py", 85, "train"), tensor, engine]);
    expect(&sites, "backward pass called at train.py:85");
    sites.stack(&[("train.py", 85, "train"), ("/x/site-packages/torch/autograd/__init__.py", 300, "backward"), engine]);
    expect(&sites, "backward pass called at train.py:85");
    sites.stack(&[("train.py", 97, "train"), tensor, engine]);
    expect(&sites, "backward pass called at train.py:85 or train.py:97");
    for line in 100..103 {
        sites.stack(&[("train.py", line, "train"), tensor, engine]);
    }
    expect(&sites, "backward pass (no line recorded)");
}

#[test]
fn backward_requests_with_a_forward_stack_name_the_operation_and_its_line() {
    let mut sites = TestSites::default();
    let frames = [
        ("train.py", 80, "train"),
        ("/x/site-packages/torch/nn/modules/module.py", 1790, "Module._call_impl"),
        ("mlp.py", 31, "Mlp.forward"),
        ("/x/site-packages/torch/nn/modules/linear.py", 134, "Linear.forward"),
    ];
    let [forward, backward] = ["net", "backward/net"].map(|scope| sites.site(scope, Category::Unknown, &frames));
    assert_eq!(name(&sites, GroupBy::Line, &block(forward)), "mlp.py:31");
    assert_eq!(name(&sites, GroupBy::Line, &block(backward)), "backward of Linear in mlp.py:31");
}

#[test]
fn sites_are_added_while_the_recording_grows() {
    let mut sites = TestSites::default();
    let mut grouping = Grouping::new(GroupBy::Line, 0);
    assert!(!grouping.update(sites.definitions()));
    let unknown = grouping.group_of(&block(SiteId(0)));
    let first = sites.stack(&[("train.py", 3, "main")]);
    assert!(grouping.update(sites.definitions()), "the first stack tells that stacks are recorded");
    let of_first = grouping.group_of(&block(first));
    assert_ne!(of_first, unknown);
    let second = sites.stack(&[("train.py", 4, "main"), ("site-packages/torch/nn/functional.py", 9, "relu")]);
    let same_line = sites.stack(&[("train.py", 3, "main"), ("site-packages/torch/functional.py", 9, "einsum")]);
    assert!(!grouping.update(sites.definitions()));
    assert_eq!(grouping.group_of(&block(first)), of_first);
    assert_eq!(grouping.group_of(&block(same_line)), of_first);
    assert_ne!(grouping.group_of(&block(second)), of_first);
    let details = grouping.group_details(sites.definitions(), of_first);
    assert_eq!((details.file.as_str(), details.line), ("train.py", 3));
    let details = grouping.group_details(sites.definitions(), grouping.len() as u32);
    assert_eq!(details, Default::default());
    let group = grouping.group_of(&Block { since_event: 0, ..block(SiteId(0)) });
    let details = grouping.group_details(sites.definitions(), group);
    assert_eq!(details.why_no_stack, Some(WhyNoStack::BeforeRecording));
}

#[test]
fn operations_are_named_by_the_best_kind_of_frame() {
    const CALL: (&str, u32, &str) = ("site-packages/torch/nn/modules/module.py", 1790, "_call_impl");
    const LINEAR: (&str, u32, &str) = ("site-packages/torch/nn/functional.py", 2300, "linear");
    const TRAIN: (&str, u32, &str) = ("train.py", 3, "main");
    const GPT: (&str, u32, &str) = ("crates/demo/src/models/gpt.rs", 66, "");
    let mut sites = TestSites::default();
    let mut check = |scope: &str, frames: &[(&str, u32, &str)], expected: &str| {
        let site = sites.site(scope, Category::Unknown, frames);
        assert_eq!(name(&sites, GroupBy::Operation, &block(site)), expected);
        site
    };
    check("", &[TRAIN, CALL, LINEAR], "linear");
    check("backward/GPT", &[TRAIN, CALL, LINEAR], "linear backward");
    check("", &[TRAIN, LINEAR, ("net.py", 7, "attention")], "attention (net.py)");
    check("", &[TRAIN, LINEAR, ("??", 0, "at::_ops::linear::call()"), ("", 0, "at::empty()")], "aten::linear");
    check("", &[TRAIN, ("", 0, "PyObject_Call"), ("??", 0, "at::empty(long)")], "main (train.py)");
    check("", &[("", 0, "torch::autograd::generated::MmBackward0::apply(X&&)")], "MmBackward0");
    check("", &[("", 0, "start_thread"), ("", 0, "at::empty(long)")], "at::empty");
    let named = check("", &[GPT, ("", 0, "attention"), ("", 0, "matmul")], "matmul");
    check("backward", &[GPT, ("", 0, "matmul")], "matmul backward");
    assert_eq!(name(&sites, GroupBy::Line, &block(named)), "gpt.rs:66");
    assert_eq!(name(&sites, GroupBy::File, &block(named)), "crates/demo/src/models/gpt.rs");
    assert_eq!(name(&sites, GroupBy::Function, &block(named)), "gpt.rs");
    assert_eq!(name(&sites, GroupBy::Site, &block(named)), "gpt.rs:66 · matmul");
    assert_eq!(name(&sites, GroupBy::Operation, &block(SiteId(0))), "backward pass (no line recorded)");
}

#[test]
fn outer_operations_enclose_the_innermost_one() {
    let call = |name: &str| ("??", 0, format!("at::_ops::{name}::call()"));
    let frames = [call("linear"), call("matmul"), call("linear"), call("mm"), call("mm_out")];
    let frames = frames.each_ref().map(|(file, line, function)| (*file, *line, function.as_str()));
    let mut sites = TestSites::default();
    let site = sites.stack(&frames);
    let mut grouping = Grouping::new(GroupBy::Operation, 0);
    grouping.update(sites.definitions());
    let group = grouping.group_of(&block(site));
    assert_eq!(grouping.group_name(sites.definitions(), group), "aten::mm");
    let outer = grouping.outer_operations(sites.definitions(), site);
    let names = outer.iter().map(|&group| grouping.group_name(sites.definitions(), group));
    assert_eq!(names.collect::<Vec<_>>(), ["aten::linear", "aten::matmul"]);
    let mut by_line = Grouping::new(GroupBy::Line, 0);
    by_line.update(sites.definitions());
    assert!(by_line.outer_operations(sites.definitions(), site).is_empty());
}
