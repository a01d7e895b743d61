//! The results that the comparing benchmarks collect: workloads, servers, rounds.
//!
//! Figures are medians over the rounds. Ratios are medians of the ratios within a round, because
//! the speed of the machine changes between rounds.

/// What a client measured in one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    /// Requests done (flushes not counted).
    pub(crate) requests: u64,
    /// Requests per second, a final flush inside the time.
    pub(crate) iops: f64,
    /// Megabytes (10^6) per second.
    pub(crate) megabytes: f64,
    /// 99th percentile of the completion latency in microseconds; of the flush where each write has
    /// one. Not every client tells.
    pub(crate) p99_us: Option<f64>,
    /// The longest of these latencies.
    pub(crate) max_us: Option<f64>,
    /// The client's own CPU use in per cent of one core: near 100 the client is the limit, not the
    /// server.
    pub(crate) client_cpu: f64,
}

/// One run of one workload on one server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// What the client saw.
    pub(crate) outcome: Outcome,
    /// Server CPU microseconds per request until the last answer.
    pub(crate) cpu_run: f64,
    /// Server CPU microseconds per request, with all background work that the run caused.
    pub(crate) cpu_settled: f64,
}

/// All runs of one workload on one server, one per round.
pub(crate) struct Series {
    /// Server.
    pub(crate) server: &'static str,
    /// In order of the rounds.
    pub(crate) samples: Vec<Sample>,
}

/// One workload's results.
pub(crate) struct Row {
    /// What ran.
    pub(crate) workload: &'static str,
    /// By server, in order of start.
    pub(crate) series: Vec<Series>,
}

/// The order in which servers have their turns in a round: another one begins each time, because
/// the first finds what a pause has left of caches.
pub(crate) fn turns(servers: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..servers).map(move |turn| (round + turn) % servers)
}

/// The median; the mean of the middle two of an even number.
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
    /// The median over the rounds.
    pub(crate) fn median(&self, metric: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(metric).collect())
    }

    /// The median of the ratios to `base`, round by round.
    pub(crate) fn ratio(&self, base: &Series, metric: impl Fn(&Sample) -> f64) -> f64 {
        median(
            self.samples.iter().zip(&base.samples).map(|(own, other)| metric(own) / metric(other)).collect(),
        )
    }
}

impl Row {
    /// The runs on a server, if it took part.
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
