//! Which series TensorBoard gets, and the layout of its tab "Custom Scalars": the most important metrics first, the
//! range from minimum to maximum as a band around the mean.

use prost::Message;

use crate::model::metric::{MetricId, Scope};
use crate::model::run::RunInfo;
use crate::model::series::SeriesInfo;

use super::{PluginData, SummaryMetadata, Tensor, Value};

/// The metrics that matter most, in the order of the charts.
const IMPORTANT: [(&str, &[MetricId]); 4] = [
    (
        "1 GPU",
        &[
            MetricId::GpuGpuUtilization,
            MetricId::GpuMemoryUsed,
            MetricId::GpuPowerUsage,
            MetricId::GpuTemperature,
        ],
    ),
    ("2 Job", &[MetricId::JobGpuMemory, MetricId::JobCpuPercent, MetricId::JobMemoryRss]),
    ("3 Host", &[MetricId::HostCpuPercent, MetricId::HostMemoryPercent]),
    ("4 Steps", &[MetricId::BatchTimeStep]),
];

/// Whether a series is written without being asked for: an important metric, or what the job says itself.
pub(super) fn is_important(series: &SeriesInfo) -> bool {
    series.scope() == Scope::User
        || series.metric == MetricId::BatchTimeThroughput
        || IMPORTANT.iter().any(|(_, metrics)| metrics.contains(&series.metric))
}

/// A series' tag without that of its group and its statistic: `gpu:3/power_usage (W)`.
pub(super) fn key(series: &SeriesInfo) -> String {
    format!("{}/{}", series.subject(false), series.name_with_unit())
}

/// `tensorboard.custom_scalar.Layout`.
#[derive(Clone, PartialEq, Message)]
struct Layout {
    #[prost(message, repeated, tag = "2")]
    category: Vec<Category>,
}

#[derive(Clone, PartialEq, Message)]
struct Category {
    #[prost(string, tag = "1")]
    title: String,
    #[prost(message, repeated, tag = "2")]
    chart: Vec<Chart>,
}

#[derive(Clone, PartialEq, Message)]
struct Chart {
    #[prost(string, tag = "1")]
    title: String,
    #[prost(message, optional, tag = "2")]
    multiline: Option<Multiline>,
    #[prost(message, optional, tag = "3")]
    margin: Option<Margin>,
}

/// Lines of the tags that match regular expressions.
#[derive(Clone, PartialEq, Message)]
struct Multiline {
    #[prost(string, repeated, tag = "1")]
    tag: Vec<String>,
}

/// Lines with bands around them.
#[derive(Clone, PartialEq, Message)]
struct Margin {
    #[prost(message, repeated, tag = "1")]
    series: Vec<Band>,
}

#[derive(Clone, PartialEq, Message)]
struct Band {
    #[prost(string, tag = "1")]
    value: String,
    #[prost(string, tag = "2")]
    lower: String,
    #[prost(string, tag = "3")]
    upper: String,
}

/// The layout of a run, as the value that the plugin looks for.
pub(super) fn value(run: &RunInfo) -> Value {
    // TensorBoard shows the charts with bands of a category from the last to the first.
    let category = IMPORTANT.iter().map(|(title, metrics)| Category {
        title: (*title).to_owned(),
        chart: metrics.iter().rev().filter_map(|metric| chart(run, *metric)).collect(),
    });
    let layout = Layout { category: category.filter(|category| !category.chart.is_empty()).collect() };
    let plugin_data = PluginData { plugin_name: "custom_scalars".to_owned() };
    Value {
        tag: "custom_scalars__config__".to_owned(),
        simple_value: None,
        tensor: Some(Tensor { dtype: 7, string_val: vec![layout.encode_to_vec()] }),
        metadata: Some(SummaryMetadata { plugin_data: Some(plugin_data) }),
    }
}

/// One chart with all series of a metric; none where the run has none.
fn chart(run: &RunInfo, metric: MetricId) -> Option<Chart> {
    let entry = metric.get();
    let mut chart = Chart { title: title(entry.name, entry.unit), multiline: None, margin: None };
    if entry.scope == Scope::BatchTime {
        // The tags that it comes in are not known beforehand.
        let name = regex(&title(entry.name, entry.unit));
        let tag = vec![format!("steps/(.*/)?batch_time/{name}/(mean|min|max)$")];
        chart.multiline = Some(Multiline { tag });
        return Some(chart);
    }
    let series = run.series.iter().filter(|series| series.metric == metric).map(|series| {
        let key = key(series);
        Band { value: format!("{key}/mean"), lower: format!("{key}/min"), upper: format!("{key}/max") }
    });
    let series: Vec<Band> = series.collect();
    (!series.is_empty()).then_some(Chart { margin: Some(Margin { series }), ..chart })
}

fn title(name: &str, unit: &str) -> String {
    if unit.is_empty() { name.to_owned() } else { format!("{name} ({unit})") }
}

fn regex(text: &str) -> String {
    text.replace('(', "\\(").replace(')', "\\)")
}
