//! Enums of the API and of the engine that have the same values.
//!
//! The API's types are a promise to users and have names in JSON. The engine's types are its own.

use hindcast_api as api;
use hindcast_engine::{cdp, pool};

/// Conversion to the value of another enum that means the same.
pub trait Same<T> {
    /// Returns the value of the other enum.
    fn same(self) -> T;
}

macro_rules! same {
    ($($api:path, $engine:path: $($of_api:ident = $of_engine:ident),+;)+) => {
        $(
            impl Same<$engine> for $api {
                fn same(self) -> $engine {
                    use $api as Api;
                    use $engine as Engine;
                    match self { $(Api::$of_api => Engine::$of_engine),+ }
                }
            }

            impl Same<$api> for $engine {
                fn same(self) -> $api {
                    use $api as Api;
                    use $engine as Engine;
                    match self { $(Engine::$of_engine => Api::$of_api),+ }
                }
            }
        )+
    };
}

same! {
    api::Method, pool::Method: Cow = Copy, Row = Redirect;
    api::Order, pool::Order: Dependent = Dependent, Independent = Independent;
    api::CachePolicy, pool::CachePolicy: RoundRobin = RoundRobin, Lru = Lru, Lfu = Lfu, S3Fifo = S3Fifo;
    api::Encoding, cdp::Encoding: Parity = Parity, Undo = Undo, Redo = Redo;
    api::FeatureState, pool::FeatureState:
        Enabled = Enabled, Available = Available, Experimental = Experimental, Internal = Internal;
    api::Compression, cdp::Compression: None = None, ZeroRun = ZeroRun, Lz4 = Lz4, Zstd = Zstd;
}
