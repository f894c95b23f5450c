//! A `tracing` layer that opens a scope for each span.

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context as LayerContext;
use tracing_subscriber::registry::LookupSpan;
use vramscope_trace::Category;

use crate::scope::{Context, ScopeHolder, enter, leave};

/// Name of the `tracing` field that sets a scope's category.
const CATEGORY: &str = "category";

/// A `tracing` layer that opens a scope on a thread whenever the thread enters a span, and closes
/// the scope when the thread exits the span.
///
/// The span's name is the scope's name. A field `category` with the name of a [`Category`] sets the
/// category. Other fields are ignored, because each of their values would be a different scope.
///
/// ```
/// use tracing_subscriber::layer::SubscriberExt;
/// use vramscope_collector::ScopeLayer;
///
/// let subscriber = tracing_subscriber::registry().with(ScopeLayer::new());
/// tracing::subscriber::with_default(subscriber, || {
///     let _step = tracing::info_span!("step").entered();
///     let _forward = tracing::info_span!("forward", category = "activation").entered();
///     // Allocations of this thread are now recorded as activations of `step/forward`.
/// });
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ScopeLayer(());

impl ScopeLayer {
    /// Creates a layer for a subscriber that stores spans, such as
    /// `tracing_subscriber::registry()`.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

/// A visitor that reads the category from a span's fields. `None` if the span has no field
/// `category` or its value is not a category's name.
#[derive(Clone, Copy, Default)]
struct SpanCategory(Option<Category>);

impl Visit for SpanCategory {
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

/// Returns true if spans with this metadata have the field [`CATEGORY`].
fn has_category(metadata: &Metadata<'_>) -> bool {
    metadata.fields().field(CATEGORY).is_some()
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for ScopeLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: LayerContext<'_, S>) {
        if has_category(attributes.metadata()) {
            let mut category = SpanCategory::default();
            attributes.record(&mut category);
            if let Some(span) = context.span(id) {
                span.extensions_mut().replace(category);
            }
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: LayerContext<'_, S>) {
        if let Some(span) = context.span(id).filter(|span| has_category(span.metadata())) {
            let mut category = span.extensions().get::<SpanCategory>().copied().unwrap_or_default();
            values.record(&mut category);
            span.extensions_mut().replace(category);
        }
    }

    fn on_enter(&self, id: &Id, context: LayerContext<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let metadata = span.metadata();
        let category = if has_category(metadata) { span.extensions().get::<SpanCategory>().copied() } else { None };
        let inside = Context::current().inside(metadata.name(), category.and_then(|category| category.0));
        enter(ScopeHolder::Span(id.into_u64()), inside);
    }

    fn on_exit(&self, id: &Id, _: LayerContext<'_, S>) {
        leave(ScopeHolder::Span(id.into_u64()));
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
        assert_eq!((current.path().with_text(str::to_owned), current.category()), (path.to_owned(), category));
    }

    fn in_subscriber(run: impl FnOnce()) {
        with_default(tracing_subscriber::registry().with(ScopeLayer::new()), run);
    }

    #[test]
    fn spans_nest_with_scopes() {
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
    fn span_can_be_entered_again_and_on_another_thread() {
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
            std::thread::spawn(there).join().expect("no thread panics");
        });
    }

    #[test]
    fn invalid_category_is_ignored() {
        in_subscriber(|| {
            let _outer = Scope::of(Category::Parameter);
            info_span!("odd", category = "elephant").in_scope(|| check("odd", Category::Parameter));
            info_span!("odd", category = 7).in_scope(|| check("odd", Category::Parameter));
            info_span!("shown", category = %"input").in_scope(|| check("shown", Category::Input));
        });
    }
}
