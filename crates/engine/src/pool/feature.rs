//! Features: formats of the pool that not every build knows, and the upgrade that enables them.

use super::Pool;
use crate::catalog::features::{FEATURES, Feature, PLACEMENTS, STABLE, Standing};
use crate::catalog::{Catalog, is_later};
use crate::control::EnableFeatures;
use crate::disk::Dir;
use crate::error::{Result, invalid};
use crate::info::feature::{FeatureInfo, FeatureState};
use crate::settings::Placement;

/// Size in bytes of the page cache for a catalog that is read once.
const READING_CACHE: usize = 1 << 20;

impl Pool {
    /// Returns the features that this build knows, and whether the pool has them.
    pub fn features(&self) -> Vec<FeatureInfo> {
        let state = |feature: &Feature| match feature.standing {
            _ if self.core.has_feature(feature.bit) => Some(FeatureState::Enabled),
            Standing::Stable => Some(FeatureState::Available),
            Standing::Experimental => Some(FeatureState::Experimental),
            Standing::Internal => Some(FeatureState::Internal),
            Standing::Reserved => None,
        };
        let info = |feature: &Feature| {
            Some(FeatureInfo { name: feature.name, about: feature.about, state: state(feature)? })
        };
        FEATURES.iter().filter_map(info).collect()
    }

    /// Returns the names of the features that the catalog of a closed pool has. It does not recover
    /// the pool. Returns [`crate::ErrorKind::Busy`] if the pool is open.
    pub fn stored_features(dir: &dyn Dir) -> Result<Vec<&'static str>> {
        let features = Catalog::open_untouched(dir, READING_CACHE)?.superblock()?.features;
        Ok(FEATURES
            .iter()
            .filter(|feature| features & feature.bit != 0)
            .map(|feature| feature.name)
            .collect())
    }

    /// Returns the features that [`Pool::upgrade`] with these names would enable.
    pub fn plan_upgrade(&self, names: &[String]) -> Result<Vec<FeatureInfo>> {
        let missing = self.missing(names)?;
        Ok(self.features().into_iter().filter(|info| is_among(missing, info)).collect())
    }

    /// Enables all stable features, and those with these names. Returns the features that the pool
    /// did not have before. They are durable when this function returns. No function disables a
    /// feature: builds that do not know it refuse the pool.
    ///
    /// Returns [`crate::ErrorKind::Invalid`] if a name can't be enabled. In that case no feature is
    /// enabled.
    pub fn upgrade(&self, names: &[String]) -> Result<Vec<FeatureInfo>> {
        let features = self.missing(names)?;
        if features == 0 {
            return Ok(Vec::new());
        }
        let lsn = self.destager.submit(|_| Ok(EnableFeatures { features }.into()))?;
        self.see_through(lsn)?;
        Ok(self.features().into_iter().filter(|info| is_among(features, info)).collect())
    }

    /// Returns the bits that an upgrade with these names would set.
    fn missing(&self, names: &[String]) -> Result<u64> {
        let named = names.iter().map(|name| by_name(name)).collect::<Result<Vec<u64>>>()?;
        let wanted = named.into_iter().fold(STABLE, |bits, bit| bits | bit);
        let lacks = |bit: &u64| wanted & bit != 0 && !self.core.has_feature(*bit);
        Ok(FEATURES.iter().map(|feature| feature.bit).filter(lacks).sum())
    }
}

/// Returns the bits of the features of a new pool: those with these names, or all that are stable,
/// and what the placement needs.
pub(super) fn of_new_pool(names: Option<&[String]>, placement: Placement) -> Result<u64> {
    placement.check()?;
    let needed = if is_later(placement) { PLACEMENTS } else { 0 };
    let Some(names) = names else { return Ok(STABLE | needed) };
    names.iter().map(|name| by_name(name)).try_fold(needed, |bits, bit| Ok(bits | bit?))
}

fn is_among(features: u64, info: &FeatureInfo) -> bool {
    FEATURES.iter().any(|feature| feature.name == info.name && features & feature.bit != 0)
}

/// Returns the bit of a feature that an upgrade can enable.
fn by_name(name: &str) -> Result<u64> {
    let can_be_named = |f: &&Feature| matches!(f.standing, Standing::Stable | Standing::Experimental);
    match FEATURES.iter().find(|feature| feature.name == name) {
        Some(feature) if can_be_named(&feature) => Ok(feature.bit),
        Some(Feature { standing: Standing::Internal, .. }) => {
            Err(invalid(format!("enable the feature {name}: the pool sets it by itself when it needs it")))
        }
        _ => {
            let known: Vec<&str> = FEATURES.iter().filter(can_be_named).map(|f| f.name).collect();
            Err(invalid(format!(
                "enable the feature {name}: this build does not know it; it knows: {}",
                known.join(", ")
            )))
        }
    }
}
