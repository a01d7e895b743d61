//! The cost model in operation. The server measures the model's inputs on the existing volumes. It
//! passes the distance of anchors that the model computes to the engine.

use crate::periodic::Worker;
use crate::settings::Prices;
use hindcast_api::CdpMeasured;
use hindcast_engine::cdp::model::{Constants, Load, VolumeModel, Weights};
use hindcast_engine::cdp::{AnchorPolicy, CdpSample};
use hindcast_engine::device::BlockDevice;
use hindcast_engine::ids::Chunk;
use hindcast_engine::pool::Pool;
use hindcast_engine::{Error, ErrorKind, Result};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between computations for all volumes. The writes of a volume change slowly, and a
/// distance that is a little old costs little.
const INTERVAL: Duration = Duration::from_secs(60);
/// Number of records that are decoded in one measurement.
const SAMPLES: usize = 256;
/// Minimum number of records of a history. Fewer give no useful measurement.
const ENOUGH: u64 = 64;
/// Number of chunks that are read in one measurement.
const READS: usize = 64;
/// Maximum number of changes that are read to count distinct chunks.
const CHANGES: usize = 100_000;
const DAY: f64 = 86_400.0;
const SECOND: f64 = 1e9;

/// Measures the inputs of the cost model for a volume. It destages nothing.
pub(crate) fn measure(pool: &Arc<Pool>, volume: &str, prices: Prices) -> Result<CdpMeasured> {
    let info = pool.cdp(volume)?;
    let chunk = pool.volume(volume)?.chunk_size;
    let samples = pool.cdp_samples(volume, SAMPLES)?;
    if info.records < ENOUGH || samples.is_empty() || info.window == 0 {
        let message = format!(
            "measure the history of {volume}: it has too few records; write to the volume and try again"
        );
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    let (decode_seconds, xor_seconds) = times(&samples);
    let stored: usize = samples.iter().map(CdpSample::stored).sum();
    let chunks = pool.recorded_chunks(volume, CHANGES)?;
    Ok(CdpMeasured {
        block_size: chunk as f64,
        record_size: stored as f64 / samples.len() as f64,
        decode_seconds,
        xor_seconds,
        io_bytes_per_second: reading(pool, volume, chunk, &chunks)?,
        writes_per_day: info.records as f64 / (info.window as f64 / SECOND) * DAY,
        distinct_blocks: chunks.len().max(1) as f64,
        max_distance: info.settings.and_then(|settings| settings.max_distance),
        price_per_hour: prices.hour,
        price_per_gigabyte: prices.gigabyte,
    })
}

/// Returns the average seconds to decode a record, and to apply it.
fn times(samples: &[CdpSample]) -> (f64, f64) {
    let start = Instant::now();
    let payloads: Vec<Option<Vec<u8>>> = samples.iter().map(CdpSample::decode).collect();
    let decoding = start.elapsed().as_secs_f64();
    let longest = samples.iter().map(CdpSample::raw).max().unwrap_or(0);
    let mut content = vec![0; longest];
    let start = Instant::now();
    for (sample, payload) in samples.iter().zip(&payloads) {
        if let Some(payload) = payload {
            sample.apply(&mut content[..payload.len()], payload);
        }
    }
    black_box(&content);
    let count = samples.len() as f64;
    (decoding / count, start.elapsed().as_secs_f64() / count)
}

/// Returns the bytes per second at which chunks of the volume are read, in the way that recovery
/// reads them.
fn reading(pool: &Arc<Pool>, volume: &str, chunk: u64, chunks: &BTreeSet<Chunk>) -> Result<f64> {
    let device = pool.open_unmetered(volume)?;
    let stride = (chunks.len() / READS).max(1);
    let size = device.info().size;
    let mut buffer = vec![0; usize::try_from(chunk).unwrap_or(0)];
    let mut read = 0;
    let start = Instant::now();
    for place in chunks.iter().step_by(stride).take(READS).map(|n| n.0 * chunk) {
        let Some(len) = size.checked_sub(place).map(|left| left.min(chunk)) else { continue };
        let part = &mut buffer[..usize::try_from(len).unwrap_or(0)];
        device.read(place, part)?;
        read += part.len();
    }
    // What was too quick to tell was at least as fast as this.
    let elapsed = start.elapsed().max(Duration::from_micros(1));
    Ok((read.max(1)) as f64 / elapsed.as_secs_f64())
}

/// Starts the thread that computes the distance of anchors. The first computation is at once,
/// because the server does not store its measurements.
pub(crate) fn start(pool: Arc<Pool>, prices: Prices) -> io::Result<Worker> {
    Worker::start("anchors", INTERVAL, move || look_around(&pool, prices))
}

fn look_around(pool: &Arc<Pool>, prices: Prices) {
    for volume in pool.volumes() {
        if volume.cdp.is_none_or(|settings| settings.anchors != AnchorPolicy::Model) {
            continue;
        }
        match distance(pool, &volume.name, prices) {
            Ok(distance) => {
                tracing::debug!(volume = volume.name, distance, "the writes between anchors were computed");
                if let Err(error) = pool.set_anchor_distance(&volume.name, Some(distance)) {
                    tracing::debug!(volume = volume.name, %error, "the distance between anchors was not set");
                }
            }
            // Few records, or none yet: nothing bounds what is between anchors until the next look.
            Err(error) => tracing::debug!(volume = volume.name, %error, "the cost model has too few records"),
        }
    }
}

/// Returns the number of writes of chunks between two anchors, by the model.
fn distance(pool: &Arc<Pool>, volume: &str, prices: Prices) -> Result<u64> {
    let measured = measure(pool, volume, prices)?;
    let weights = Weights::priced(prices.hour, prices.gigabyte);
    let constants = Constants {
        s_blk: measured.block_size,
        s_log: measured.record_size,
        t_dec: measured.decode_seconds,
        t_xor: measured.xor_seconds,
        io_rate: measured.io_bytes_per_second,
    };
    let load = Load { w_total: measured.writes_per_day, n: measured.distinct_blocks };
    // The volume's own bound is the engine's to keep.
    Ok(VolumeModel::new(constants, load, weights)?.interval(u64::MAX))
}
