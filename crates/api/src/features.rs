//! Requests and responses about features: the formats of a pool that not every build knows.

use crate::client::{Client, ClientError};
use crate::named::named;
use hyper::Method;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

named! {
    /// Whether the pool has a feature, and how the feature can be enabled.
    pub enum FeatureState {
        /// The pool has the feature. Builds that do not know it refuse the pool.
        Enabled = "enabled",
        /// An upgrade enables the feature.
        Available = "available",
        /// An upgrade enables the feature if the request names it.
        Experimental = "experimental",
        /// The pool does not have the feature, and enables it by itself when it needs it.
        Internal = "internal",
    }
}

/// A feature: a format that not every build knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Feature {
    /// Name of the feature.
    pub name: String,
    /// A description of the feature, of one sentence.
    pub about: String,
    /// Whether the pool has the feature.
    pub state: FeatureState,
}

/// Request to upgrade the pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// Names of experimental features to enable. All features in the state `available` are enabled
    /// in any case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub enable: Vec<String>,
    /// Only return the features that would be enabled. Enable nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl Client {
    /// Returns the features that the server knows, and whether the pool has them.
    pub fn features(&self) -> Result<Vec<Feature>, ClientError> {
        self.get("/pool/features")
    }

    /// Enables features of the pool. No request disables a feature. Returns the features that the
    /// pool did not have before.
    pub fn upgrade(&self, how: &Upgrade) -> Result<Vec<Feature>, ClientError> {
        self.send(Method::POST, "/pool/upgrade", how)
    }
}
