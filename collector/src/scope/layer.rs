//! Spans of the `tracing` crate as scopes.

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context as LayerContext;
use tracing_subscriber::registry::LookupSpan;
use vramscope_trace::Category;

use super::{Context, Holder, enter, leave};

/// The field of a span that says what memory asked for in it is for.
const CATEGORY: &str = "category";

/// Makes a scope of each `tracing` span while a thread is in it, so that a program that has spans already says where its memory is asked for
/// with no change to its code.
///
/// The span's name is the scope's. A field `category` with the name of a [`Category`] says what the memory is for; other fields
/// are not looked at, since each of their values would be a scope of its own.
///
/// ```
/// use tracing_subscriber::layer::SubscriberExt;
/// use vramscope_collector::ScopeLayer;
///
/// let subscriber = tracing_subscriber::registry().with(ScopeLayer::new());
/// tracing::subscriber::with_default(subscriber, || {
///     let _step = tracing::info_span!("step").entered();
///     let _forward = tracing::info_span!("forward", category = "activation").entered();
///     // What this thread asks any pool for is now said to be an activation, asked for in `step/forward`.
/// });
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ScopeLayer(());

impl ScopeLayer {
    /// A layer to put on a subscriber that keeps its spans, such as `tracing_subscriber::registry()`.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

/// What a span says that its memory is for.
#[derive(Clone, Copy, Default)]
struct Said(Option<Category>);

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == CATEGORY {
            self.0 = Category::ALL.into_iter().find(|category| category.name() == value);
        }
    }
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == CATEGORY {
            self.record_str(field, &format!("{value:?}"));
        }
    }
}

fn has_category(metadata: &Metadata<'_>) -> bool {
    metadata.fields().field(CATEGORY).is_some()
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for ScopeLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: LayerContext<'_, S>) {
        if has_category(attributes.metadata()) {
            let mut said = Said::default();
            attributes.record(&mut said);
            if let Some(span) = context.span(id) {
                span.extensions_mut().replace(said);
            }
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: LayerContext<'_, S>) {
        if let Some(span) = context.span(id).filter(|span| has_category(span.metadata())) {
            let mut said = span.extensions().get::<Said>().copied().unwrap_or_default();
            values.record(&mut said);
            span.extensions_mut().replace(said);
        }
    }

    fn on_enter(&self, id: &Id, context: LayerContext<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let metadata = span.metadata();
        let said = if has_category(metadata) { span.extensions().get::<Said>().copied() } else { None };
        let inside = Context::current().inside(metadata.name(), said.and_then(|said| said.0));
        enter(Holder::Span(id.into_u64()), inside);
    }

    fn on_exit(&self, id: &Id, _: LayerContext<'_, S>) {
        leave(Holder::Span(id.into_u64()));
    }
}

#[cfg(test)]
mod tests {
    use tracing::subscriber::with_default;
    use tracing::{info_span, trace_span};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::scope::Scope;

    #[track_caller]
    fn check(path: &str, category: Category) {
        let current = Context::current();
        assert_eq!((current.path.with_text(str::to_owned), current.category), (path.to_owned(), category));
    }

    fn in_subscriber(run: impl FnOnce()) {
        with_default(tracing_subscriber::registry().with(ScopeLayer::new()), run);
    }

    #[test]
    fn spans_are_scopes_among_scopes() {
        in_subscriber(|| {
            let step = info_span!("step", number = 7).entered();
            check("step", Category::Unknown);
            {
                let _forward = Scope::open_with("forward", Category::Activation);
                let _layer = trace_span!("layer").entered();
                check("step/forward/layer", Category::Activation);
            }
            let backward = info_span!("backward", category = "gradient").entered();
            check("step/backward", Category::Gradient);
            drop(backward);
            check("step", Category::Unknown);
            drop(step);
            check("", Category::Unknown);
        });
    }

    #[test]
    fn a_span_may_be_entered_again_and_on_another_thread() {
        in_subscriber(|| {
            let span = info_span!("task", category = tracing::field::Empty);
            span.in_scope(|| check("task", Category::Unknown));
            check("", Category::Unknown);
            span.record("category", "workspace");
            span.in_scope(|| span.in_scope(|| check("task/task", Category::Workspace)));
            let dispatch = tracing::dispatcher::get_default(Clone::clone);
            let there = move || {
                tracing::dispatcher::with_default(&dispatch, || span.in_scope(|| check("task", Category::Workspace)));
            };
            std::thread::spawn(there).join().expect("no panic");
        });
    }

    #[test]
    fn a_category_that_is_none_says_nothing() {
        in_subscriber(|| {
            let _outer = Scope::of(Category::Parameter);
            info_span!("odd", category = "elephant").in_scope(|| check("odd", Category::Parameter));
            info_span!("odd", category = 7).in_scope(|| check("odd", Category::Parameter));
            info_span!("shown", category = %"input").in_scope(|| check("shown", Category::Input));
        });
    }
}
