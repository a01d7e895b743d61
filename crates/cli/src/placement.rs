//! Placements: where the pool, or a volume, has its new data.

use crate::failure::Failure;
use clap::Args;
use hindcast_api::{PatchPlacement, Placement, Pool, Size, Volume};

/// The sizes of the placement snap-aware.
#[derive(Debug, Args)]
pub(crate) struct Sizes {
    /// With snap-aware: size of a slice of a volume, behind which there is a gap for snapshots
    /// [default: 64M]
    #[arg(long, value_name = "SIZE", requires = "placement")]
    pub(crate) slice_size: Option<Size>,
    /// With snap-aware: number of snapshots that the gap has room for [default: 4]
    #[arg(long, value_name = "NUMBER", requires = "placement")]
    pub(crate) snapshots: Option<u32>,
    /// With snap-aware: part of a slice that one snapshot keeps, in per cent [default: 10]
    #[arg(long, value_name = "PERCENT", requires = "placement")]
    pub(crate) snapshot_percent: Option<u32>,
}

impl Sizes {
    /// Returns a placement with these sizes. Without a policy it is that of the pool.
    pub(crate) fn with(&self, policy: Option<Placement>) -> PatchPlacement {
        PatchPlacement {
            policy,
            slice_size: self.slice_size.map(|size| size.0),
            snapshots: self.snapshots,
            snapshot_percent: self.snapshot_percent,
        }
    }
}

/// The sizes of the placement snap-aware, for a volume.
#[derive(Debug, Args)]
pub(crate) struct VolumeSizes {
    #[command(flatten)]
    sizes: Sizes,
    /// With snap-aware: number of slices into which the volume is cut, in the place of --slice-size
    #[arg(long, value_name = "NUMBER", requires = "placement", conflicts_with = "slice_size",
        value_parser = clap::value_parser!(u64).range(1..))]
    slices: Option<u64>,
}

impl VolumeSizes {
    /// Returns a placement with these sizes. `volume_size` returns the size of the volume.
    pub(crate) fn with(
        &self,
        policy: Option<Placement>,
        volume_size: impl FnOnce() -> Result<u64, Failure>,
    ) -> Result<PatchPlacement, Failure> {
        let patch = self.sizes.with(policy);
        let Some(slices) = self.slices else { return Ok(patch) };
        Ok(PatchPlacement { slice_size: Some(volume_size()?.div_ceil(slices)), ..patch })
    }
}

/// The placement that a volume is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VolumePolicy {
    /// That of the pool.
    AsPool,
    Own(Placement),
}

impl VolumePolicy {
    pub(crate) fn parse(text: &str) -> Result<VolumePolicy, String> {
        match text {
            "pool" => Ok(VolumePolicy::AsPool),
            text => text.parse().map(VolumePolicy::Own).map_err(|error| format!("{error}, or pool")),
        }
    }

    pub(crate) fn own(self) -> Option<Placement> {
        match self {
            VolumePolicy::AsPool => None,
            VolumePolicy::Own(placement) => Some(placement),
        }
    }
}

/// The least size of a write that goes to its place at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirectSize {
    /// That of the pool.
    AsPool,
    /// A number of bytes; 0: no write does.
    Own(u64),
}

impl DirectSize {
    pub(crate) fn parse(text: &str) -> Result<DirectSize, String> {
        match text {
            "pool" => Ok(DirectSize::AsPool),
            "off" => Ok(DirectSize::Own(0)),
            text => text
                .parse::<Size>()
                .map(|size| DirectSize::Own(size.0))
                .map_err(|error| format!("{error}; or off, or pool")),
        }
    }

    /// Returns the size in bytes, or `None` for that of the pool.
    pub(crate) fn min(self) -> Option<u64> {
        match self {
            DirectSize::AsPool => None,
            DirectSize::Own(bytes) => Some(bytes),
        }
    }
}

/// Describes which writes of a volume go to their places at once. `of_pool` is the word for the
/// size of the pool.
pub(crate) fn direct(volume: &Volume, of_pool: &str) -> String {
    match volume.direct_min {
        None => of_pool.into(),
        Some(0) => "off".into(),
        Some(min) => Size(min).to_string(),
    }
}

/// Describes the placement of the pool.
pub(crate) fn of_pool(pool: &Pool) -> String {
    described(pool.placement, pool.slice_size, pool.gap_size)
}

/// Describes the placement of a volume.
pub(crate) fn of_volume(volume: &Volume) -> String {
    let own = volume.placement.map(|own| described(own.policy, own.slice_size, own.gap_size));
    own.unwrap_or_else(|| "that of the pool".into())
}

fn described(policy: Placement, slice_size: Option<u64>, gap_size: Option<u64>) -> String {
    match (slice_size, gap_size) {
        (Some(slice), Some(gap)) => {
            format!("{}, slices of {} and gaps of {}", policy.name(), Size(slice), Size(gap))
        }
        _ => policy.name().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_slices_becomes_their_size() {
        #[derive(clap::Parser)]
        struct Cli {
            #[arg(long)]
            placement: Option<Placement>,
            #[command(flatten)]
            sizes: VolumeSizes,
        }
        let parse = |words: &str| {
            let cli = <Cli as clap::Parser>::try_parse_from(words.split(' ')).ok()?;
            cli.sizes.with(cli.placement, || Ok(10 << 20)).ok()?.slice_size
        };
        assert_eq!(parse("set --placement snap-aware --slices 3"), Some((10 << 20) / 3 + 1));
        assert_eq!(parse("set --placement snap-aware --slice-size 1M"), Some(1 << 20));
        assert_eq!(parse("set --placement snap-aware"), None);
        for refused in ["--slices 0 --placement snap-aware", "--slices 3", "--slices 3 --slice-size 1M"] {
            assert!(
                <Cli as clap::Parser>::try_parse_from(format!("set {refused}").split(' ')).is_err(),
                "{refused}"
            );
        }
    }

    #[test]
    fn direct_writes_begin_at_a_size_or_never() {
        assert_eq!(DirectSize::parse("pool").map(DirectSize::min), Ok(None));
        assert_eq!(DirectSize::parse("off").map(DirectSize::min), Ok(Some(0)));
        assert_eq!(DirectSize::parse("64K").map(DirectSize::min), Ok(Some(65_536)));
        let refused = DirectSize::parse("small").unwrap_err();
        assert!(refused.ends_with("or off, or pool"), "{refused}");
    }

    #[test]
    fn a_volume_has_the_placement_of_the_pool_or_its_own() {
        assert_eq!(VolumePolicy::parse("pool"), Ok(VolumePolicy::AsPool));
        assert_eq!(VolumePolicy::parse("share"), Ok(VolumePolicy::Own(Placement::Share)));
        let refused = VolumePolicy::parse("near").unwrap_err();
        assert!(refused.contains("snap-aware") && refused.ends_with("or pool"), "{refused}");
    }
}
