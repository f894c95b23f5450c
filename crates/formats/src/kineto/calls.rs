//! The site of each memory event: the operators, Python functions and modules that were running on
//! its thread.

use std::cmp::Reverse;
use std::collections::HashMap;

use vramscope_trace::{Frame, FrameId, Interner, Site, SiteId, StackId, StringId};

use super::library_files::recorded_path;
use super::trace::{Span, SpanKind, Trace};

/// Scope of requests of the backward pass, as the hook records it.
const BACKWARD: &str = "backward";
/// Beginning of the names of calls of modules.
const MODULE: &str = "nn.Module: ";
/// Beginning of the names of ranges in which an optimizer runs.
const OPTIMIZER: &str = "Optimizer.step";
/// Length of a scope from which on the scopes inside of it are left out, in bytes.
const MAX_SCOPE_BYTES: usize = 1000;
/// Maximum number of spans that are open at once on a thread; calls inside are left out.
const MAX_OPEN: usize = 1024;

/// What a span adds to the calls inside of it.
#[derive(Clone, Copy, Debug)]
enum Call {
    Frame { frame: FrameId, is_python: bool },
    Scope(StringId),
    Nothing,
}

/// A span that is open.
#[derive(Clone, Copy, Debug)]
struct OpenSpan {
    end_ns: i64,
    call: Call,
    /// The arrow from the operator whose backward pass the span runs.
    link: Option<u32>,
    /// The calls up to this span, once a memory event needed them.
    calls: Option<Calls>,
}

/// The calls around a moment of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    stack: StackId,
    has_python: bool,
    /// Modules, and the optimizer.
    scope: StringId,
    /// The arrow of the innermost part of the backward pass.
    link: Option<u32>,
}

/// A moment of a thread at which the calls are needed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// The memory event with this index.
    Memory(usize),
    /// The start of the arrow with this number.
    LinkStart(u32),
}

/// Finds the sites of all memory events, in their order.
pub(super) fn sites(trace: &Trace, interner: &mut Interner) -> Vec<SiteId> {
    let mut finder = CallFinder::new(trace, interner);
    let mut spans: Vec<&Span> = trace.spans.iter().collect();
    spans.sort_by_key(|span| (span.thread, span.start_ns, Reverse(span.end_ns)));
    let memory = trace.memory.iter().enumerate().map(|(index, row)| (row.thread, row.time_ns, Moment::Memory(index)));
    let starts = trace.link_starts.iter().map(|end| (end.thread, end.time_ns, Moment::LinkStart(end.link)));
    let mut moments: Vec<(u32, i64, Moment)> = memory.chain(starts).collect();
    moments.sort_by_key(|(thread, time_ns, _)| (*thread, *time_ns));
    let mut of_memory = vec![Calls::default(); trace.memory.len()];
    let mut of_links: HashMap<u32, Calls> = HashMap::new();
    let mut spans = spans.into_iter().peekable();
    let (mut open, mut open_thread): (Vec<OpenSpan>, u32) = (Vec::new(), 0);
    for (thread, time_ns, moment) in moments {
        if thread != open_thread {
            (open, open_thread) = (Vec::new(), thread);
        }
        while let Some(span) = spans.next_if(|span| (span.thread, span.start_ns) <= (thread, time_ns)) {
            if span.thread == thread && open.len() < MAX_OPEN {
                close(&mut open, span.start_ns);
                finder.open(&mut open, span);
            }
        }
        close(&mut open, time_ns);
        let calls = finder.calls(&mut open);
        match moment {
            Moment::Memory(index) => of_memory[index] = calls,
            Moment::LinkStart(link) => {
                of_links.insert(link, calls);
            }
        }
    }
    of_memory.into_iter().map(|calls| finder.site(calls, &of_links)).collect()
}

/// Removes the spans that end before a time.
fn close(open: &mut Vec<OpenSpan>, time_ns: i64) {
    while open.last().is_some_and(|span| span.end_ns < time_ns) {
        open.pop();
    }
}

/// Turns spans into stacks and scopes.
struct CallFinder<'a> {
    trace: &'a Trace,
    interner: &'a mut Interner,
    /// By the number of a name, what a span of that name adds.
    calls: HashMap<u32, Call>,
    /// The arrow that ends at the start of a span, by thread and time.
    links: HashMap<(u32, i64), u32>,
    /// A scope inside of another one.
    scopes: HashMap<(StringId, StringId), StringId>,
    /// The texts of scopes.
    texts: HashMap<StringId, String>,
}

impl<'a> CallFinder<'a> {
    fn new(trace: &'a Trace, interner: &'a mut Interner) -> Self {
        let links = trace.link_ends.iter().map(|end| ((end.thread, end.time_ns), end.link)).collect();
        Self { trace, interner, calls: HashMap::new(), links, scopes: HashMap::new(), texts: HashMap::new() }
    }

    /// Adds a span to those that are open.
    fn open(&mut self, open: &mut Vec<OpenSpan>, span: &Span) {
        let call = self.call(span);
        let is_operator = span.kind == SpanKind::Operator;
        let link = if is_operator { self.links.get(&(span.thread, span.start_ns)).copied() } else { None };
        open.push(OpenSpan { end_ns: span.end_ns, call, link, calls: None });
    }

    /// Returns what a span adds to the calls inside of it.
    fn call(&mut self, span: &Span) -> Call {
        if let Some(known) = self.calls.get(&span.name) {
            return *known;
        }
        let name = self.trace.names.get(span.name as usize).map_or("", |name| &**name);
        let call = match span.kind {
            SpanKind::Operator => {
                let function = self.interner.string(name);
                Call::Frame { frame: self.interner.frame(Frame { function, ..Frame::default() }), is_python: false }
            }
            SpanKind::Annotation if name.starts_with(OPTIMIZER) => Call::Scope(self.scope(name)),
            SpanKind::Annotation => Call::Nothing,
            SpanKind::Python => match name.strip_prefix(MODULE) {
                Some(module) => Call::Scope(self.scope(module)),
                None => self.python_frame(name).map_or(Call::Nothing, |frame| Call::Frame { frame, is_python: true }),
            },
        };
        self.calls.insert(span.name, call);
        call
    }

    /// Returns the frame of a Python function, whose name is `file(line): function`.
    fn python_frame(&mut self, name: &str) -> Option<FrameId> {
        let (place, function) = name.split_once("): ")?;
        let (file, line) = place.rsplit_once('(')?;
        let (file, function) = (self.interner.string(&recorded_path(file)), self.interner.string(function));
        Some(self.interner.frame(Frame { function, file, line: line.parse().unwrap_or(0) }))
    }

    /// Returns the calls of the spans that are open.
    fn calls(&mut self, open: &mut [OpenSpan]) -> Calls {
        let first = open.iter().rposition(|span| span.calls.is_some()).map_or(0, |index| index + 1);
        let mut calls = first.checked_sub(1).and_then(|index| open[index].calls).unwrap_or_default();
        for span in &mut open[first..] {
            match span.call {
                Call::Frame { frame, is_python } => {
                    calls.stack = self.interner.stack(frame, calls.stack);
                    calls.has_python |= is_python;
                }
                Call::Scope(scope) => calls.scope = self.inner_scope(calls.scope, scope),
                Call::Nothing => {}
            }
            calls.link = span.link.or(calls.link);
            span.calls = Some(calls);
        }
        calls
    }

    /// Returns the scope inside of another one: `outer/inner`.
    fn inner_scope(&mut self, outer: StringId, inner: StringId) -> StringId {
        if outer == StringId(0) {
            return inner;
        }
        if let Some(known) = self.scopes.get(&(outer, inner)) {
            return *known;
        }
        let text = |id| self.texts.get(&id).map_or("", String::as_str);
        let scope = match text(outer) {
            outer_text if outer_text.len() > MAX_SCOPE_BYTES => outer,
            outer_text => self.scope(&format!("{outer_text}/{}", text(inner))),
        };
        self.scopes.insert((outer, inner), scope);
        scope
    }

    /// Returns the number of a scope.
    fn scope(&mut self, text: &str) -> StringId {
        let scope = self.interner.string(text);
        self.texts.entry(scope).or_insert_with(|| text.to_owned());
        scope
    }

    /// Returns the site of an event. Memory of the backward pass gets the stack of the forward
    /// operation, if that is known with its Python functions.
    fn site(&mut self, calls: Calls, of_links: &HashMap<u32, Calls>) -> SiteId {
        let forward = calls.link.and_then(|link| of_links.get(&link)).filter(|forward| forward.has_python);
        let (stack, scope) = match forward.filter(|_| !calls.has_python) {
            Some(forward) => {
                let backward = self.scope(BACKWARD);
                (forward.stack, self.inner_scope(forward.scope, backward))
            }
            None => (calls.stack, calls.scope),
        };
        self.interner.site(Site { stack, scope, ..Site::default() })
    }
}
