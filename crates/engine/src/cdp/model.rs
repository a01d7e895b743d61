//! The cost model of ST-CDP: how often to insert a snapshot (here: an anchor) into a log of
//! parities.
//!
//! Equations and symbols are those of section 4 of Yang, Cao, Li, Xie, Yang: "ST-CDP: Snapshots in
//! TRAP for Continuous Data Protection", IEEE Transactions on Computers 2012, doi
//! 10.1109/TC.2011.150. Long stretches between anchors take little space and a long time to recover
//! from. Short stretches do the reverse.
//!
//! [`BlockModel`] weighs recovery time against space for one block, in parities between anchors
//! (*d*). [`VolumeModel`] does so for a whole volume, in writes between anchors (*M*), at prices
//! that the user sets. docs/CDP.md lists the inputs that the paper does not state, and the tests
//! show it.
//!
//! The units are bytes, seconds and writes. Money is in the unit of the prices.

use crate::error::{Result, invalid};

#[cfg(test)]
mod paper;
#[cfg(test)]
mod tests;

/// The properties of a machine and its data that the model needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constants {
    /// *S_blk*: size of a data block, in bytes.
    pub s_blk: f64,
    /// *S_log*: size of a compressed parity block, in bytes, on average.
    pub s_log: f64,
    /// *T_dec*: time to decode one parity, in seconds.
    pub t_dec: f64,
    /// *T_xor*: time to XOR one parity onto a block, in seconds.
    pub t_xor: f64,
    /// *IO_rate*: bytes per second that storage reads during recovery.
    pub io_rate: f64,
}

impl Constants {
    /// *C*, the compression ratio: *S_blk* / *S_log*.
    pub fn ratio(&self) -> f64 {
        self.s_blk / self.s_log
    }

    /// Seconds to take one parity into account: read, decode, XOR. The paper's *c₁* and *e₁*.
    pub fn step(&self) -> f64 {
        self.t_dec + self.t_xor + self.s_log / self.io_rate
    }

    /// Seconds to copy one block of a snapshot. The paper's *c₂*.
    pub fn copy(&self) -> f64 {
        self.s_blk / self.io_rate
    }

    /// *M_max*: the number of writes that can be recovered with `memory` bytes, if each is in
    /// memory both compressed and as a block.
    pub fn m_max(&self, memory: f64) -> u64 {
        whole(memory / (self.s_blk + self.s_log))
    }

    fn validate(&self) -> Result<()> {
        positive("block size", self.s_blk)?;
        positive("size of a compressed parity", self.s_log)?;
        not_negative("decoding time", self.t_dec)?;
        not_negative("XOR time", self.t_xor)?;
        positive("I/O rate", self.io_rate)
    }
}

/// *E*: the average number of parities to apply when the nearer of two anchors `d` parities apart
/// is used (equation 4).
pub fn expected_steps(d: f64) -> f64 {
    (d + 1.0) / 4.0
}

/// Seconds to recover a block from a log without anchors: native TRAP (equation 3). The block is
/// written `w_avg` times a second, and the moment is `t_span` seconds ago.
pub fn native_recovery(constants: &Constants, w_avg: f64, t_span: f64) -> f64 {
    constants.step() * w_avg * t_span
}

/// The model of one block's log: recovery time against space, by the length of sub-logs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockModel {
    constants: Constants,
    w_avg: f64,
}

impl BlockModel {
    /// The model of a block that is written `w_avg` times per unit of time. The optimum does not
    /// depend on `w_avg`. With 1, space is in bytes per write.
    pub fn new(constants: Constants, w_avg: f64) -> Result<BlockModel> {
        constants.validate()?;
        positive("writes per unit of time", w_avg)?;
        Ok(BlockModel { constants, w_avg })
    }

    /// *T(d)*: seconds to recover the block (equation 5).
    pub fn recovery(&self, d: f64) -> f64 {
        self.constants.step() * expected_steps(d) + self.constants.copy()
    }

    /// *S(d)*: bytes that are kept per unit of time (equation 6).
    pub fn space(&self, d: f64) -> f64 {
        self.constants.s_log * self.w_avg + self.constants.s_blk * self.w_avg / d
    }

    /// *F(d)*: the compound cost, recovery time times space (equation 7).
    pub fn cost(&self, d: f64) -> f64 {
        self.recovery(d) * self.space(d)
    }

    /// *d₀*: the length with the least compound cost (equation 8).
    pub fn best(&self) -> f64 {
        let (c1, c2) = (self.constants.step(), self.constants.copy());
        let (c3, c4) = (self.constants.s_log * self.w_avg, self.constants.s_blk * self.w_avg);
        ((c1 + 4.0 * c2) * c4 / (c1 * c3)).sqrt()
    }

    /// The length to use: the whole number closest to *d₀*, at least 1.
    pub fn best_length(&self) -> u64 {
        whole(self.best().round())
    }
}

/// The load of a volume in a day.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// *W_total*: writes a day.
    pub w_total: f64,
    /// *N*: blocks in a snapshot on average, which are the distinct blocks written between two.
    pub n: f64,
}

/// The value of time and of space to the user.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// *β*: price of a second of recovery.
    pub beta: f64,
    /// *γ*: price of a byte of storage.
    pub gamma: f64,
}

/// The price of an hour of recovery, unless the operator sets another one.
pub const PRICE_PER_HOUR: f64 = 1000.0;
/// The price of a gigabyte (10⁹ bytes, as disks and clouds are sold), in the same money as the
/// hour.
pub const PRICE_PER_GIGABYTE: f64 = 0.1;

impl Weights {
    /// Makes weights of a price per hour and a price per gigabyte.
    pub fn priced(per_hour: f64, per_gigabyte: f64) -> Weights {
        Weights { beta: per_hour / 3600.0, gamma: per_gigabyte / 1e9 }
    }
}

/// The model of a whole volume: the cost of recovery and space, by the writes between two anchors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VolumeModel {
    w_total: f64,
    weights: Weights,
    /// *e₁*: seconds for one parity.
    e1: f64,
    /// *e₂*: seconds to copy one snapshot.
    e2: f64,
    /// *e₃*: bytes of parities a day.
    e3: f64,
    /// *e₄*: bytes of snapshots a day, if each write were followed by one.
    e4: f64,
}

impl VolumeModel {
    /// The model of a volume under a load, at the user's prices. One of the prices may be zero.
    pub fn new(constants: Constants, load: Load, weights: Weights) -> Result<VolumeModel> {
        constants.validate()?;
        positive("writes a day", load.w_total)?;
        positive("blocks in a snapshot", load.n)?;
        not_negative("price of time", weights.beta)?;
        not_negative("price of space", weights.gamma)?;
        positive("sum of the prices", weights.beta + weights.gamma)?;
        Ok(VolumeModel {
            w_total: load.w_total,
            weights,
            e1: constants.step(),
            e2: constants.copy() * load.n,
            e3: constants.s_log * load.w_total,
            e4: constants.s_blk * load.w_total * load.n,
        })
    }

    /// Seconds to recover the volume: parities to the nearer anchor, and half a day's snapshots
    /// (equation 9's first part).
    pub fn recovery(&self, m: f64) -> f64 {
        self.e1 * expected_steps(m) + self.e2 * self.w_total / (2.0 * m)
    }

    /// Bytes that are kept for a day (equation 9's second part).
    pub fn space(&self, m: f64) -> f64 {
        self.e3 + self.e4 / m
    }

    /// *F_cost(M)*: the cost of a day's protection (equations 9 and 10).
    pub fn cost(&self, m: f64) -> f64 {
        let Weights { beta, gamma } = self.weights;
        beta * self.recovery(m) + gamma * self.space(m)
    }

    /// The derivative of the cost (equation 11).
    pub fn slope(&self, m: f64) -> f64 {
        let Weights { beta, gamma } = self.weights;
        beta * (self.e1 / 4.0 - self.e2 * self.w_total / 2.0 * m.powi(-2)) - gamma * self.e4 * m.powi(-2)
    }

    /// *M₀*: the writes between two anchors with the least cost (equation 12). It is infinite when
    /// time costs nothing, because anchors then only take space.
    pub fn best(&self) -> f64 {
        let Weights { beta, gamma } = self.weights;
        ((2.0 * beta * self.e2 * self.w_total + 4.0 * gamma * self.e4) / (beta * self.e1)).sqrt()
    }

    /// The second derivative of the cost, which is positive: *M₀* is a minimum (equation 13).
    pub fn curvature(&self, m: f64) -> f64 {
        let Weights { beta, gamma } = self.weights;
        (beta * self.e2 * self.w_total + 2.0 * gamma * self.e4) * m.powi(-3)
    }

    /// The number of writes after which to insert an anchor: the whole number closest to *M₀*, at
    /// least 1, at most `m_max`.
    pub fn interval(&self, m_max: u64) -> u64 {
        whole(self.best().round()).min(m_max.max(1))
    }
}

/// Rounds to a whole number, at least 1. A value that is too large for an integer becomes the
/// largest integer.
fn whole(value: f64) -> u64 {
    // A float cast saturates, and makes 0 of what is no number.
    (value as u64).max(1)
}

fn positive(what: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(invalid(format!("use the cost model: {what} is {value}, not a positive number")))
}

fn not_negative(what: &str, value: f64) -> Result<()> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(invalid(format!("use the cost model: {what} is {value}, not a number of at least zero")))
}
