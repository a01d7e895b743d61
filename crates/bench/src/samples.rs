//! Results of the benchmarks that compare: workloads, servers, rounds.
//!
//! Figures are medians over the rounds. Ratios are medians of the ratios within a round, because
//! the speed of the machine changes between rounds.

/// The figures that a client measured in one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    /// Number of requests done, without flushes.
    pub(crate) requests: u64,
    /// Requests per second. The time includes a final flush.
    pub(crate) iops: f64,
    /// Megabytes (10^6 bytes) per second.
    pub(crate) megabytes: f64,
    /// 99th percentile of the completion latency in microseconds. If each write has a flush, it is
    /// the latency of the flush. `None` if the client reports no latency.
    pub(crate) p99_us: Option<f64>,
    /// Longest of the latencies of which `p99_us` is the 99th percentile, in microseconds.
    pub(crate) max_us: Option<f64>,
    /// CPU use of the client in per cent of one core. Near 100, the client is the limit and not the
    /// server.
    pub(crate) client_cpu: f64,
}

/// One run of one workload on one server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// Figures that the client measured.
    pub(crate) outcome: Outcome,
    /// CPU time of the server until the last answer, in microseconds per request.
    pub(crate) cpu_run: f64,
    /// CPU time of the server in microseconds per request. It includes all background work that the
    /// run caused.
    pub(crate) cpu_settled: f64,
}

/// All runs of one workload on one server, one for each round.
pub(crate) struct Series {
    /// Name of the server in reports.
    pub(crate) server: &'static str,
    /// Runs in the order of the rounds.
    pub(crate) samples: Vec<Sample>,
}

/// Results of one workload on all servers.
pub(crate) struct Row {
    /// Name of the workload in reports.
    pub(crate) workload: &'static str,
    /// One series for each server, in the order in which the servers were started.
    pub(crate) series: Vec<Series>,
}

/// Returns the order in which servers run in a round. Each round begins with another server,
/// because the first server finds only the cached pages that a pause has left.
pub(crate) fn turns(servers: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..servers).map(move |turn| (round + turn) % servers)
}

/// Returns the median. For an even number of values, it is the mean of the middle two. For no
/// values, it is NaN.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

impl Series {
    /// Returns the median of a metric over the rounds.
    pub(crate) fn median(&self, metric: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(metric).collect())
    }

    /// Returns the median of the ratios to `base` within each round.
    pub(crate) fn ratio(&self, base: &Series, metric: impl Fn(&Sample) -> f64) -> f64 {
        median(
            self.samples.iter().zip(&base.samples).map(|(own, other)| metric(own) / metric(other)).collect(),
        )
    }
}

impl Row {
    /// Returns the runs on a server, or `None` if it took no part.
    pub(crate) fn of(&self, server: &str) -> Option<&Series> {
        self.series.iter().find(|s| s.server == server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn everyone_begins_once() {
        let orders: Vec<Vec<usize>> = (0..3).map(|round| turns(3, round).collect()).collect();
        assert_eq!(orders, [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }
}
