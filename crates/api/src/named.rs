//! Enums whose values have names. The names are used in JSON, in tables for people, in settings and
//! on the command line.

/// Defines such an enum. Each value has one name, which is written once.
///
/// Beside the enum the macro makes `NAMES`, `name` and `FromStr`, and with the feature `clap` also
/// `clap::ValueEnum`.
macro_rules! named {
    ($(#[$attribute:meta])* pub enum $type:ident { $($(#[$of_value:meta])* $value:ident = $name:tt,)+ }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
        #[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
        pub enum $type {
            $(
                $(#[$of_value])*
                #[serde(rename = $name)]
                #[cfg_attr(feature = "clap", value(name = $name))]
                $value,
            )+
        }

        impl $type {
            /// Names of all values, in the order of the enum.
            pub const NAMES: &[&str] = &[$($name),+];

            /// Returns the name of the value, as in JSON.
            pub const fn name(self) -> &'static str {
                match self { $($type::$value => $name),+ }
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok($type::$value),)+
                    _ => Err(format!("{text:?} is none of {}", $type::NAMES.join(", "))),
                }
            }
        }
    };
}
pub(crate) use named;

#[cfg(test)]
mod tests {
    use crate::{CachePolicy, Compression, Method};

    #[test]
    fn a_name_is_the_same_everywhere() {
        for name in CachePolicy::NAMES {
            let value: CachePolicy = name.parse().unwrap();
            assert_eq!(value.name(), *name);
            assert_eq!(serde_json::to_string(&value).unwrap(), format!("{name:?}"));
            assert_eq!(serde_json::from_str::<CachePolicy>(&format!("{name:?}")).unwrap(), value);
        }
        assert_eq!(CachePolicy::NAMES, ["round-robin", "lru", "lfu", "s3-fifo"]);
        assert_eq!(Compression::NAMES, ["none", "zero-run", "lz4", "zstd"]);
        assert_eq!("neither".parse::<Method>(), Err("\"neither\" is none of cow, row".into()));
    }
}
