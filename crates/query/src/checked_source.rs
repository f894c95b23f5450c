//! Names the object in each error of reading Parquet, and turns panics into errors.
//!
//! The parquet crate panics for some damaged files, and its errors do not name the file.

use std::any::Any;
use std::fmt::{self, Formatter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::config::ConfigOptions;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::object_store::ObjectStore;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::filter_pushdown::FilterPushdownPropagation;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayFormatType, SortOrderPushdownResult};
use datafusion_datasource::file_stream::FileOpener;
use datafusion_datasource::morsel::{Morsel, MorselPlan, MorselPlanner, Morselizer};
use futures_util::FutureExt as _;
use futures_util::stream::{self, BoxStream, StreamExt as _};

use crate::error::{ObjectError, name_object};

/// A source of Parquet files that calls the wrapped one, names the object in its errors, and turns
/// its panics into errors.
pub(crate) struct CheckedSource(Arc<dyn FileSource>);

impl CheckedSource {
    /// Returns a source that calls `source`.
    pub(crate) fn wrap(source: Arc<dyn FileSource>) -> Arc<dyn FileSource> {
        Arc::new(Self(source))
    }
}

impl FileSource for CheckedSource {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        self.0.create_file_opener(store, config, partition)
    }

    fn create_morselizer(
        &self,
        store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        partition: usize,
    ) -> Result<Box<dyn Morselizer>> {
        Ok(Box::new(CheckedMorselizer(self.0.create_morselizer(store, config, partition)?)))
    }

    fn table_schema(&self) -> &TableSchema {
        self.0.table_schema()
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        Self::wrap(self.0.with_batch_size(batch_size))
    }

    fn filter(&self) -> Option<Arc<dyn PhysicalExpr>> {
        self.0.filter()
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        self.0.projection()
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.0.metrics()
    }

    fn file_type(&self) -> &str {
        self.0.file_type()
    }

    fn fmt_extra(&self, kind: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt_extra(kind, f)
    }

    fn supports_repartitioning(&self) -> bool {
        self.0.supports_repartitioning()
    }

    fn try_pushdown_filters(
        &self,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn FileSource>>> {
        let pushed = self.0.try_pushdown_filters(filters, config)?;
        Ok(FilterPushdownPropagation { filters: pushed.filters, updated_node: pushed.updated_node.map(Self::wrap) })
    }

    fn try_pushdown_sort(
        &self,
        order: &[PhysicalSortExpr],
        properties: &EquivalenceProperties,
    ) -> Result<SortOrderPushdownResult<Arc<dyn FileSource>>> {
        Ok(self.0.try_pushdown_sort(order, properties)?.map(Self::wrap))
    }

    fn reorder_files(&self, files: Vec<PartitionedFile>) -> Vec<PartitionedFile> {
        self.0.reorder_files(files)
    }

    fn try_pushdown_projection(&self, projection: &ProjectionExprs) -> Result<Option<Arc<dyn FileSource>>> {
        Ok(self.0.try_pushdown_projection(projection)?.map(Self::wrap))
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.0.apply_expressions(visit)
    }
}

/// A planner of files that names the file in each error.
#[derive(Debug)]
struct CheckedMorselizer(Box<dyn Morselizer>);

impl Morselizer for CheckedMorselizer {
    fn plan_file(&self, file: PartitionedFile) -> Result<Box<dyn MorselPlanner>> {
        let name: Arc<str> = file.object_meta.location.as_ref().into();
        let inner = check(&name, || self.0.plan_file(file))?;
        Ok(Checked::boxed(name, inner) as _)
    }
}

/// A planner of one object, or a part of its rows, with the object's name for errors.
#[derive(Debug)]
struct Checked<T: ?Sized> {
    name: Arc<str>,
    inner: Box<T>,
}

impl<T: ?Sized> Checked<T> {
    /// Wraps `inner`, which reads the object `name`.
    fn boxed(name: Arc<str>, inner: Box<T>) -> Box<Self> {
        Box::new(Self { name, inner })
    }
}

impl MorselPlanner for Checked<dyn MorselPlanner> {
    fn plan(self: Box<Self>) -> Result<Option<MorselPlan>> {
        let Self { name, inner } = *self;
        let Some(mut plan) = check(&name, || inner.plan())? else { return Ok(None) };
        let morsels = plan.take_morsels().into_iter().map(|inner| Checked::boxed(Arc::clone(&name), inner) as _);
        let planners =
            plan.take_ready_planners().into_iter().map(|inner| Checked::boxed(Arc::clone(&name), inner) as _);
        let mut checked = MorselPlan::new().with_morsels(morsels.collect()).with_planners(planners.collect());
        if let Some(pending) = plan.take_pending_planner() {
            checked.set_pending_planner(async move {
                let planned = AssertUnwindSafe(pending.into_future()).catch_unwind().await;
                let inner = name_failure(&name, planned)?;
                Ok(Checked::boxed(name, inner) as _)
            });
        }
        Ok(Some(checked))
    }
}

impl Morsel for Checked<dyn Morsel> {
    fn into_stream(self: Box<Self>) -> BoxStream<'static, Result<RecordBatch>> {
        let Self { name, inner } = *self;
        match check(&name, || Ok(inner.into_stream())) {
            Ok(batches) => {
                let caught = AssertUnwindSafe(batches).catch_unwind();
                caught.map(move |batch| name_failure(&name, batch)).boxed()
            }
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }
}

/// Runs `read`, which reads the object `name`. An error or a panic becomes an error with that name.
fn check<T>(name: &str, read: impl FnOnce() -> Result<T>) -> Result<T> {
    name_failure(name, catch_unwind(AssertUnwindSafe(read)))
}

/// Returns the result of reading the object `name`. An error or a caught panic becomes an error
/// with that name.
fn name_failure<T>(name: &str, result: std::result::Result<Result<T>, Box<dyn Any + Send>>) -> Result<T> {
    match result {
        Ok(result) => result.map_err(|error| name_object(name, error)),
        Err(_) => Err(ObjectError::new(name, "it is damaged").into()),
    }
}
