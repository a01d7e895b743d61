//! The settings of a server. One structure, [`Settings`], defines its flags, its environment
//! variables and the keys of its file.
//!
//! A flag `--map-cache` is the variable `HINDCAST_MAP_CACHE` and the key `map-cache`.

use clap::Args;
use hindcast_api::{Placement, Size};
use hindcast_engine::pool::CachePolicy;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

/// Everything that can be said about a server, none of it required but the data directory.
#[derive(Debug, Clone, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Settings {
    /// Directory of the pool. There has to be one in it, unless --create is given
    #[arg(long, env = "HINDCAST_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// Make a new pool where there is none, and its directory; a pool that exists is opened as it
    /// is. For the first start only: later, where there is none, a file system may not be mounted
    #[arg(
        long,
        env = "HINDCAST_CREATE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_name = "BOOL"
    )]
    pub create: Option<bool>,

    /// Show a pool whose data directory and physical volumes are of different times: read-only,
    /// nothing is written, and what is read may be wrong
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    #[serde(skip)]
    pub force_stale: Option<bool>,

    /// Serve what is left of a damaged pool: read-only, nothing is written, and what can't be read
    /// answers an error. `hindcast salvage` lists what is lost
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_name = "BOOL",
        conflicts_with = "force_stale"
    )]
    #[serde(skip)]
    pub salvage: Option<bool>,

    /// With --salvage: make the catalog, in memory, out of this backup, a file or a physical volume
    #[arg(long, value_name = "PATH", requires = "salvage")]
    #[serde(skip)]
    pub salvage_from: Option<PathBuf>,

    /// With --salvage: where a physical volume is now; repeatable
    #[arg(long, value_name = "OLD=NEW", requires = "salvage")]
    #[serde(skip)]
    pub salvage_moved: Option<Vec<Moved>>,

    /// TOML file; its keys are the long names of these options
    #[arg(long, env = "HINDCAST_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// Commands around snapshots, by volume; in the file only
    #[arg(skip)]
    pub hooks: Option<BTreeMap<String, Hook>>,

    /// Admin API listener, HOST:PORT or unix:PATH; repeatable, replaces the default [default:
    /// unix:DIR/hindcast.sock]
    #[arg(
        long,
        env = "HINDCAST_API",
        value_name = "ADDRESS",
        value_delimiter = ',',
        help_heading = "Listeners"
    )]
    pub api: Option<Vec<String>>,

    /// File with the bearer token that clients of TCP API listeners must present
    #[arg(long, env = "HINDCAST_API_TOKEN_FILE", value_name = "FILE", help_heading = "Listeners")]
    pub api_token_file: Option<PathBuf>,

    /// Directory that paths in requests to the admin API may lead into: images below volumes,
    /// exported files and devices, physical volumes, backups; repeatable. Without any, requests
    /// over TCP name no paths, and those over Unix sockets any
    #[arg(
        long,
        env = "HINDCAST_ALLOW_PATH",
        value_name = "DIR",
        value_delimiter = ':',
        help_heading = "Listeners"
    )]
    pub allow_path: Option<Vec<PathBuf>>,

    /// NBD listener, HOST:PORT or unix:PATH, or none; repeatable, replaces the default [default:
    /// 127.0.0.1:10809]
    #[arg(
        long,
        env = "HINDCAST_NBD",
        value_name = "ADDRESS",
        value_delimiter = ',',
        help_heading = "Listeners"
    )]
    pub nbd: Option<Vec<String>>,

    /// Let NBD listen without required TLS where other machines reach it: any client that reaches
    /// it reads and writes all volumes
    #[arg(
        long,
        env = "HINDCAST_NBD_OPEN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_name = "BOOL",
        help_heading = "Listeners"
    )]
    pub nbd_open: Option<bool>,

    /// Certificate chain (PEM) for TLS on NBD
    #[arg(long, env = "HINDCAST_NBD_TLS_CERT", value_name = "FILE", help_heading = "Listeners")]
    pub nbd_tls_cert: Option<PathBuf>,

    /// Private key (PEM) of the certificate
    #[arg(long, env = "HINDCAST_NBD_TLS_KEY", value_name = "FILE", help_heading = "Listeners")]
    pub nbd_tls_key: Option<PathBuf>,

    /// Authorities (PEM) that client certificates must come from; without it clients need none.
    /// Over TCP clients have to use TLS then, unless --nbd-tls-required says otherwise
    #[arg(long, env = "HINDCAST_NBD_TLS_CA", value_name = "FILE", help_heading = "Listeners")]
    pub nbd_tls_ca: Option<PathBuf>,

    /// Refuse NBD clients that do not switch to TLS: never, tcp (Unix sockets excepted) or always;
    /// without a value, always [default: never, or tcp with --nbd-tls-ca]
    #[arg(
        long,
        env = "HINDCAST_NBD_TLS_REQUIRED",
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "always",
        help_heading = "Listeners"
    )]
    pub nbd_tls_required: Option<TlsWhen>,

    /// NBD connections served at once [default: 1024]
    #[arg(long, env = "HINDCAST_NBD_MAX_CONNECTIONS", value_name = "N", help_heading = "Listeners")]
    pub nbd_max_connections: Option<u32>,

    /// NBD connections from one address, or one /64 of IPv6; Unix sockets are not counted so
    /// [default: half of all]
    #[arg(
        long,
        env = "HINDCAST_NBD_MAX_CONNECTIONS_PER_ADDRESS",
        value_name = "N",
        help_heading = "Listeners"
    )]
    pub nbd_max_connections_per_address: Option<u32>,

    /// Permissions of NBD's Unix sockets, in octal: 0600 for the server's user, 0660 for its group
    /// too [default: 0600]
    #[arg(long, env = "HINDCAST_NBD_SOCKET_MODE", value_name = "MODE", help_heading = "Listeners")]
    pub nbd_socket_mode: Option<SocketMode>,

    /// Bytes of NBD requests in flight, on all connections together [default: 256M]
    #[arg(long, env = "HINDCAST_NBD_MAX_IN_FLIGHT", value_name = "SIZE", help_heading = "Listeners")]
    pub nbd_max_in_flight: Option<Size>,

    /// iSCSI portal, HOST:PORT[/GROUP][=ADVERTISED], or none; repeatable, replaces the default.
    /// GROUP is the portal group tag, 1 unless given; ADVERTISED is what discovery tells instead of
    /// the address [default: 127.0.0.1:3260]
    #[arg(
        long,
        env = "HINDCAST_ISCSI",
        value_name = "PORTAL",
        value_delimiter = ',',
        help_heading = "Listeners"
    )]
    pub iscsi: Option<Vec<String>>,

    /// iSCSI connections served at once [default: 1024]
    #[arg(long, env = "HINDCAST_ISCSI_MAX_CONNECTIONS", value_name = "N", help_heading = "Listeners")]
    pub iscsi_max_connections: Option<u32>,

    /// iSCSI connections from one address, or one /64 of IPv6 [default: half of all]
    #[arg(
        long,
        env = "HINDCAST_ISCSI_MAX_CONNECTIONS_PER_ADDRESS",
        value_name = "N",
        help_heading = "Listeners"
    )]
    pub iscsi_max_connections_per_address: Option<u32>,

    /// iSCSI sessions at once; discovery sessions have at most a quarter of them [default: 1024]
    #[arg(long, env = "HINDCAST_ISCSI_MAX_SESSIONS", value_name = "N", help_heading = "Listeners")]
    pub iscsi_max_sessions: Option<u32>,

    /// iSCSI sessions from one address, or one /64 of IPv6 [default: half of all]
    #[arg(
        long,
        env = "HINDCAST_ISCSI_MAX_SESSIONS_PER_ADDRESS",
        value_name = "N",
        help_heading = "Listeners"
    )]
    pub iscsi_max_sessions_per_address: Option<u32>,

    /// Bytes of iSCSI commands in flight, on all connections together [default: 512M]
    #[arg(long, env = "HINDCAST_ISCSI_MAX_IN_FLIGHT", value_name = "SIZE", help_heading = "Listeners")]
    pub iscsi_max_in_flight: Option<Size>,

    /// CRC32C digests of iSCSI headers and data: offered (the initiator chooses), refused or
    /// required [default: offered]
    #[arg(long, env = "HINDCAST_ISCSI_DIGESTS", value_name = "POLICY", help_heading = "Listeners")]
    pub iscsi_digests: Option<Digests>,

    /// Size of the first physical volume, a sparse file [default: 80 % of the free space]
    #[arg(long, env = "HINDCAST_POOL_SIZE", value_name = "SIZE", help_heading = "When the pool is created")]
    pub pool_size: Option<Size>,

    /// Size of the journal [default: 1G]
    #[arg(
        long,
        env = "HINDCAST_JOURNAL_SIZE",
        value_name = "SIZE",
        help_heading = "When the pool is created"
    )]
    pub journal_size: Option<Size>,

    /// Size of a journal segment, 4M to 256M [default: 32M, less for a small journal]
    #[arg(
        long,
        env = "HINDCAST_SEGMENT_SIZE",
        value_name = "SIZE",
        help_heading = "When the pool is created"
    )]
    pub segment_size: Option<Size>,

    /// Unit of allocation, 64K to 1G [default: 4M]
    #[arg(
        long,
        env = "HINDCAST_EXTENT_SIZE",
        value_name = "SIZE",
        help_heading = "When the pool is created"
    )]
    pub extent_size: Option<Size>,

    /// What the disks write atomically, 512 or 4096 [default: 4096]
    #[arg(
        long,
        env = "HINDCAST_ATOMIC_UNIT",
        value_name = "SIZE",
        help_heading = "When the pool is created"
    )]
    pub atomic_unit: Option<Size>,

    /// Where new data goes: anywhere or contiguous [default: anywhere]
    #[arg(
        long,
        env = "HINDCAST_PLACEMENT",
        value_name = "POLICY",
        help_heading = "When the pool is created"
    )]
    pub placement: Option<Placement>,

    /// Chunk size of volumes that are created without one [default: 16K]
    #[arg(long, env = "HINDCAST_CHUNK", value_name = "SIZE", help_heading = "Tuning")]
    pub chunk: Option<Size>,

    /// Bound of the map cache [default: 64M]
    #[arg(long, env = "HINDCAST_MAP_CACHE", value_name = "SIZE", help_heading = "Tuning")]
    pub map_cache: Option<Size>,

    /// Replacement in the map cache: round-robin, lru, lfu or s3-fifo [default: s3-fifo]
    #[arg(long, env = "HINDCAST_MAP_CACHE_POLICY", value_name = "POLICY", help_heading = "Tuning")]
    pub map_cache_policy: Option<Replacement>,

    /// Bound of the catalog's page cache [default: 64M]
    #[arg(long, env = "HINDCAST_CATALOG_CACHE", value_name = "SIZE", help_heading = "Tuning")]
    pub catalog_cache: Option<Size>,

    /// Threads that move data from the journal to its place [default: 2]
    #[arg(long, env = "HINDCAST_DESTAGE_THREADS", value_name = "N", help_heading = "Tuning")]
    pub destage_threads: Option<u16>,

    /// Journal bytes that are moved in one batch; at most an eighth of the journal [default: 128M]
    #[arg(long, env = "HINDCAST_DESTAGE_BATCH", value_name = "SIZE", help_heading = "Tuning")]
    pub destage_batch: Option<Size>,

    /// Start moving when this share of the journal is in use, in per cent [default: 60]
    #[arg(long, env = "HINDCAST_DESTAGE_START", value_name = "PERCENT", help_heading = "Tuning")]
    pub destage_start: Option<u8>,

    /// Price of an hour of recovery, for volumes whose anchors follow the cost model [default:
    /// 1000]
    #[arg(long, env = "HINDCAST_CDP_BETA", value_name = "PRICE", help_heading = "Tuning")]
    pub cdp_beta: Option<f64>,

    /// Price of a gigabyte of history, in the same money [default: 0.1]
    #[arg(long, env = "HINDCAST_CDP_GAMMA", value_name = "PRICE", help_heading = "Tuning")]
    pub cdp_gamma: Option<f64>,

    /// Compress old history harder when there is nothing else to do [default: true]
    #[arg(long, env = "HINDCAST_CDP_RECOMPRESS", value_name = "BOOL", help_heading = "Tuning")]
    pub cdp_recompress: Option<bool>,

    /// Warn when less than this share of the pool is free, in per cent [default: 10]
    #[arg(long, env = "HINDCAST_LOW_SPACE", value_name = "PERCENT", help_heading = "Tuning")]
    pub low_space: Option<u8>,

    /// Open the pool although a part of its journal is damaged or missing: what was acknowledged
    /// there is lost, and told
    #[arg(long, num_args = 0, default_missing_value = "true", help_heading = "Operation")]
    #[serde(skip)]
    pub accept_journal_loss: Option<bool>,

    /// Seconds that clients get to finish when the server stops [default: 10]
    #[arg(long, env = "HINDCAST_STOP_TIMEOUT", value_name = "SECONDS", help_heading = "Operation")]
    pub stop_timeout: Option<u32>,

    /// Hours between backups of the metadata into DIR/metadata; one is made at each clean stop
    /// anyway; 0: no more [default: 24]
    #[arg(long, env = "HINDCAST_METADATA_INTERVAL", value_name = "HOURS")]
    pub metadata_interval: Option<u16>,

    /// Backups of the metadata that are kept in DIR/metadata [default: 3]
    #[arg(long, env = "HINDCAST_METADATA_KEEP", value_name = "N")]
    pub metadata_keep: Option<u16>,

    /// What to log, as in "info" or "info,hindcast_engine=debug" [default: info]
    #[arg(long, env = "HINDCAST_LOG", value_name = "FILTER", help_heading = "Operation")]
    pub log: Option<String>,

    /// Form of the log on stderr: text, json, or journal (priorities, no times) [default: journal
    /// under systemd]
    #[arg(long, env = "HINDCAST_LOG_FORMAT", value_name = "FORMAT", help_heading = "Operation")]
    pub log_format: Option<LogFormat>,
}

/// When NBD clients must use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlsWhen {
    /// It is their choice.
    Never,
    /// When they come over TCP.
    Tcp,
    /// On Unix sockets too.
    Always,
}

impl FromStr for TlsWhen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(TlsWhen::Never),
            "tcp" => Ok(TlsWhen::Tcp),
            "always" => Ok(TlsWhen::Always),
            _ => Err("TLS is required never, tcp or always".into()),
        }
    }
}

/// Permissions of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SocketMode(pub u32);

impl FromStr for SocketMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode & !0o666 == 0 && mode & 0o600 == 0o600 => Ok(SocketMode(mode)),
            _ => Err("the permissions of a socket are octal, 0600 to 0666".into()),
        }
    }
}

impl TryFrom<String> for SocketMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Whether iSCSI connections use digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Digests {
    /// As the initiator likes.
    Offered,
    /// Never.
    Refused,
    /// Always; initiators that do without are refused.
    Required,
}

impl FromStr for Digests {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "offered" => Ok(Digests::Offered),
            "refused" => Ok(Digests::Refused),
            "required" => Ok(Digests::Required),
            _ => Err("digests are offered, refused or required".into()),
        }
    }
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
    /// Lines for systemd's journal, which has its own times.
    Journal,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            "journal" => Ok(LogFormat::Journal),
            _ => Err("a log format is text, json or journal".into()),
        }
    }
}

/// Commands around the snapshots of one volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Hook {
    /// Run by `sh -c` first; if it fails there is no snapshot.
    pub before: Option<String>,
    /// Run by `sh -c` last, whatever happened.
    pub after: Option<String>,
    /// Seconds from the start of `before` until `after` is run come what may. Default: 10.
    pub timeout: Option<u16>,
}

/// Where a physical volume is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// Its path in the catalog.
    pub old: String,
    /// Its path now.
    pub new: String,
}

impl FromStr for Moved {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((old, new)) if !old.is_empty() && !new.is_empty() => {
                // Paths that are not absolute would be those of the data directory.
                let new = std::path::absolute(new).map_err(|e| e.to_string())?;
                Ok(Moved { old: old.into(), new: new.to_string_lossy().into_owned() })
            }
            _ => Err("a physical volume that was moved is OLD=NEW, two paths".into()),
        }
    }
}

/// Replacement in the map cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Replacement(pub CachePolicy);

impl FromStr for Replacement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "round-robin" => Ok(Replacement(CachePolicy::RoundRobin)),
            "lru" => Ok(Replacement(CachePolicy::Lru)),
            "lfu" => Ok(Replacement(CachePolicy::Lfu)),
            "s3-fifo" => Ok(Replacement(CachePolicy::S3Fifo)),
            _ => Err("a cache policy is round-robin, lru, lfu or s3-fifo".into()),
        }
    }
}

impl TryFrom<String> for Replacement {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl Settings {
    /// What `self` leaves open is taken from `other`.
    pub(crate) fn or(self, other: Settings) -> Settings {
        macro_rules! merge {
            ($($field:ident),* $(,)?) => { Settings { $($field: self.$field.or(other.$field)),* } };
        }
        merge!(
            data,
            create,
            force_stale,
            salvage,
            salvage_from,
            salvage_moved,
            config,
            hooks,
            api,
            api_token_file,
            allow_path,
            nbd,
            nbd_open,
            nbd_tls_cert,
            nbd_tls_key,
            nbd_tls_ca,
            nbd_tls_required,
            nbd_max_connections,
            nbd_max_connections_per_address,
            nbd_socket_mode,
            nbd_max_in_flight,
            iscsi,
            iscsi_max_connections,
            iscsi_max_connections_per_address,
            iscsi_max_sessions,
            iscsi_max_sessions_per_address,
            iscsi_max_in_flight,
            iscsi_digests,
            pool_size,
            journal_size,
            segment_size,
            extent_size,
            atomic_unit,
            placement,
            chunk,
            map_cache,
            map_cache_policy,
            catalog_cache,
            destage_threads,
            destage_batch,
            destage_start,
            cdp_beta,
            cdp_gamma,
            cdp_recompress,
            low_space,
            accept_journal_loss,
            stop_timeout,
            metadata_interval,
            metadata_keep,
            log,
            log_format,
        )
    }
}
