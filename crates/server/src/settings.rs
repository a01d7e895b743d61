//! The settings of a server. One structure, [`Settings`], defines its flags, its environment
//! variables and the keys of its file.
//!
//! A flag `--map-cache` is the variable `HINDCAST_MAP_CACHE` and the key `map-cache`.

use clap::{Args, ValueEnum};
use hindcast_api::{CachePolicy, Placement, Role, Severity, Size, TimeSpan};
use merge::Merge;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The settings of a server. Only the data directory is required.
#[derive(Debug, Clone, Default, Args, Deserialize, Merge)]
#[merge(strategy = merge::option::overwrite_none)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Settings {
    /// Data directory of the pool; it must hold a pool, unless --create is given
    #[arg(long, env = "HINDCAST_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// Create the data directory and the pool if they do not exist; an existing pool is opened as
    /// it is. Use it for the first start only: later a missing pool usually means that a file
    /// system is not mounted
    #[arg(
        long,
        env = "HINDCAST_CREATE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_name = "BOOL"
    )]
    pub create: Option<bool>,

    /// Serve a pool although its data directory and physical volumes are of different times:
    /// read-only, nothing is written to the pool, and the data that clients read may be wrong
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    #[serde(skip)]
    pub force_stale: Option<bool>,

    /// Serve the readable data of a damaged pool: read-only, nothing is written to the pool, and a
    /// read of lost data gets an error. `hindcast salvage` lists the losses
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

    /// With --salvage: use the backup of the catalog in this file, or on this physical volume,
    /// instead of the catalog
    #[arg(long, value_name = "PATH", requires = "salvage")]
    #[serde(skip)]
    pub salvage_from: Option<PathBuf>,

    /// With --salvage: path of a physical volume in the catalog, and its path now; repeatable
    #[arg(long, value_name = "OLD=NEW", requires = "salvage")]
    #[serde(skip)]
    pub salvage_moved: Option<Vec<Moved>>,

    /// Configuration file in TOML; its keys are the long names of these options
    #[arg(long, env = "HINDCAST_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// Commands to run before and after snapshots, by volume; in the file only
    #[arg(skip)]
    pub hooks: Option<BTreeMap<String, Hook>>,

    /// Whom the server tells about problems; in the file this is the table [notify], with the keys
    /// command, webhook, ca and min-severity
    #[command(flatten)]
    #[merge(strategy = Merge::merge)]
    pub notify: Notify,

    /// Listener of the admin API, HOST:PORT or unix:PATH; repeatable; it replaces the defaults.
    /// HOST:PORT speaks TLS, except on loopback addresses without --api-tls-cert [default:
    /// unix:DIR/hindcast.sock in the data directory DIR, and 127.0.0.1:8440]
    #[arg(
        long,
        env = "HINDCAST_API",
        value_name = "ADDRESS",
        value_delimiter = ',',
        help_heading = "Listeners"
    )]
    pub api: Option<Vec<String>>,

    /// File with a bearer token whose holder is an admin; see also hindcast access token
    #[arg(long, env = "HINDCAST_API_TOKEN_FILE", value_name = "FILE", help_heading = "Listeners")]
    pub api_token_file: Option<PathBuf>,

    /// Certificate chain (PEM) of the admin API; a changed file is used without a restart [default:
    /// the server makes a certificate that signs itself]
    #[arg(long, env = "HINDCAST_API_TLS_CERT", value_name = "FILE", help_heading = "Listeners")]
    pub api_tls_cert: Option<PathBuf>,

    /// Private key (PEM) of the --api-tls-cert
    #[arg(long, env = "HINDCAST_API_TLS_KEY", value_name = "FILE", help_heading = "Listeners")]
    pub api_tls_key: Option<PathBuf>,

    /// Speak plain HTTP on all listeners of the admin API, for example behind a proxy with TLS
    #[arg(
        long,
        env = "HINDCAST_API_PLAIN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_name = "BOOL",
        help_heading = "Listeners"
    )]
    pub api_plain: Option<bool>,

    /// Further name by which clients reach the admin API over TCP; repeatable. The server refuses
    /// requests with another name than these, those in its certificate, the machine's own, and the
    /// addresses on which it listens
    #[arg(
        long,
        env = "HINDCAST_API_HOST",
        value_name = "NAME",
        value_delimiter = ',',
        help_heading = "Listeners"
    )]
    pub api_host: Option<Vec<String>>,

    /// Group whose members may use the Unix socket of the admin API, by its name or number
    /// [default: only root and the server's own user]
    #[arg(long, env = "HINDCAST_API_SOCKET_GROUP", value_name = "GROUP", help_heading = "Listeners")]
    pub api_socket_group: Option<String>,

    /// Role of the members of --api-socket-group [default: operator]
    #[arg(long, env = "HINDCAST_API_SOCKET_ROLE", value_name = "ROLE", help_heading = "Listeners")]
    pub api_socket_role: Option<Role>,

    /// Directory in which requests to the admin API may name paths of images below volumes,
    /// exported files and devices, physical volumes, and backups; repeatable [default: over TCP no
    /// path is allowed, over Unix sockets every path]
    #[arg(
        long,
        env = "HINDCAST_ALLOW_PATH",
        value_name = "DIR",
        value_delimiter = ':',
        help_heading = "Listeners"
    )]
    pub allow_path: Option<Vec<PathBuf>>,

    /// NBD listener, HOST:PORT or unix:PATH, or none; repeatable; it replaces the default [default:
    /// 127.0.0.1:10809]
    #[arg(
        long,
        env = "HINDCAST_NBD",
        value_name = "ADDRESS",
        value_delimiter = ',',
        help_heading = "Listeners"
    )]
    pub nbd: Option<Vec<String>>,

    /// Open volumes without access rules on NBD listeners that other machines reach; every client
    /// that reaches them can read and write these volumes [default: clients need an access rule]
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

    /// Private key (PEM) of the --nbd-tls-cert
    #[arg(long, env = "HINDCAST_NBD_TLS_KEY", value_name = "FILE", help_heading = "Listeners")]
    pub nbd_tls_key: Option<PathBuf>,

    /// Certificate authorities (PEM) that must have signed the certificates of NBD clients; NBD
    /// over TCP then requires TLS, unless --nbd-tls-required sets something else [default: clients
    /// need no certificate]
    #[arg(long, env = "HINDCAST_NBD_TLS_CA", value_name = "FILE", help_heading = "Listeners")]
    pub nbd_tls_ca: Option<PathBuf>,

    /// Which NBD clients must use TLS; without a value: always [default: never, or tcp with
    /// --nbd-tls-ca]
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

    /// Maximum NBD connections at once [default: 1024]
    #[arg(long, env = "HINDCAST_NBD_MAX_CONNECTIONS", value_name = "N", help_heading = "Listeners")]
    pub nbd_max_connections: Option<u32>,

    /// Maximum NBD connections from one address, or from one /64 of IPv6; Unix sockets have no such
    /// limit [default: half of --nbd-max-connections]
    #[arg(
        long,
        env = "HINDCAST_NBD_MAX_CONNECTIONS_PER_ADDRESS",
        value_name = "N",
        help_heading = "Listeners"
    )]
    pub nbd_max_connections_per_address: Option<u32>,

    /// Permissions of the NBD Unix sockets, in octal: 0600 for the server's user, 0660 for its
    /// group too [default: 0600]
    #[arg(long, env = "HINDCAST_NBD_SOCKET_MODE", value_name = "MODE", help_heading = "Listeners")]
    pub nbd_socket_mode: Option<SocketMode>,

    /// Maximum bytes of NBD requests in flight, on all connections together [default: 256M]
    #[arg(long, env = "HINDCAST_NBD_MAX_IN_FLIGHT", value_name = "SIZE", help_heading = "Listeners")]
    pub nbd_max_in_flight: Option<Size>,

    /// iSCSI portal, HOST:PORT[/GROUP][=ADVERTISED], or none; repeatable; it replaces the default.
    /// GROUP is the portal group tag, 1 unless given. Discovery reports ADVERTISED instead of the
    /// address [default: 127.0.0.1:3260]
    #[arg(
        long,
        env = "HINDCAST_ISCSI",
        value_name = "PORTAL",
        value_delimiter = ',',
        help_heading = "Listeners"
    )]
    pub iscsi: Option<Vec<String>>,

    /// Maximum iSCSI connections at once [default: 1024]
    #[arg(long, env = "HINDCAST_ISCSI_MAX_CONNECTIONS", value_name = "N", help_heading = "Listeners")]
    pub iscsi_max_connections: Option<u32>,

    /// Maximum iSCSI connections from one address, or from one /64 of IPv6 [default: half of
    /// --iscsi-max-connections]
    #[arg(
        long,
        env = "HINDCAST_ISCSI_MAX_CONNECTIONS_PER_ADDRESS",
        value_name = "N",
        help_heading = "Listeners"
    )]
    pub iscsi_max_connections_per_address: Option<u32>,

    /// Maximum iSCSI sessions at once; at most a quarter of them can be discovery sessions
    /// [default: 1024]
    #[arg(long, env = "HINDCAST_ISCSI_MAX_SESSIONS", value_name = "N", help_heading = "Listeners")]
    pub iscsi_max_sessions: Option<u32>,

    /// Maximum iSCSI sessions from one address, or from one /64 of IPv6 [default: half of
    /// --iscsi-max-sessions]
    #[arg(
        long,
        env = "HINDCAST_ISCSI_MAX_SESSIONS_PER_ADDRESS",
        value_name = "N",
        help_heading = "Listeners"
    )]
    pub iscsi_max_sessions_per_address: Option<u32>,

    /// Maximum bytes of iSCSI commands in flight, on all connections together [default: 512M]
    #[arg(long, env = "HINDCAST_ISCSI_MAX_IN_FLIGHT", value_name = "SIZE", help_heading = "Listeners")]
    pub iscsi_max_in_flight: Option<Size>,

    /// CRC32C digests of iSCSI headers and data [default: offered]
    #[arg(long, env = "HINDCAST_ISCSI_DIGESTS", value_name = "POLICY", help_heading = "Listeners")]
    pub iscsi_digests: Option<Digests>,

    /// Size of the first physical volume, a sparse file in the data directory [default: 80 % of the
    /// free space]
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

    /// Size of an extent, the unit in which volumes get space, 64K to 1G [default: 4M]
    #[arg(
        long,
        env = "HINDCAST_EXTENT_SIZE",
        value_name = "SIZE",
        help_heading = "When the pool is created"
    )]
    pub extent_size: Option<Size>,

    /// Bytes that the disks write atomically, 512 or 4096 [default: 4096]
    #[arg(
        long,
        env = "HINDCAST_ATOMIC_UNIT",
        value_name = "SIZE",
        help_heading = "When the pool is created"
    )]
    pub atomic_unit: Option<Size>,

    /// Where the pool places new data [default: anywhere]
    #[arg(
        long,
        env = "HINDCAST_PLACEMENT",
        value_name = "POLICY",
        help_heading = "When the pool is created"
    )]
    pub placement: Option<Placement>,

    /// Formats that the pool has, separated by commas, or none; see hindcast pool features
    /// [default: all that are stable]
    #[arg(
        long,
        env = "HINDCAST_POOL_FEATURES",
        value_name = "NAMES",
        help_heading = "When the pool is created"
    )]
    pub pool_features: Option<String>,

    /// Chunk size of volumes that are created without --chunk [default: 16K]
    #[arg(long, env = "HINDCAST_CHUNK", value_name = "SIZE", help_heading = "Tuning")]
    pub chunk: Option<Size>,

    /// Memory limit of the map cache, which holds the maps of volumes [default: 64M]
    #[arg(long, env = "HINDCAST_MAP_CACHE", value_name = "SIZE", help_heading = "Tuning")]
    pub map_cache: Option<Size>,

    /// Replacement policy of the map cache [default: s3-fifo]
    #[arg(long, env = "HINDCAST_MAP_CACHE_POLICY", value_name = "POLICY", help_heading = "Tuning")]
    pub map_cache_policy: Option<CachePolicy>,

    /// Memory limit of the catalog's page cache [default: 64M]
    #[arg(long, env = "HINDCAST_CATALOG_CACHE", value_name = "SIZE", help_heading = "Tuning")]
    pub catalog_cache: Option<Size>,

    /// Threads that move data from the journal to the physical volumes (destage) [default: 2]
    #[arg(long, env = "HINDCAST_DESTAGE_THREADS", value_name = "N", help_heading = "Tuning")]
    pub destage_threads: Option<u16>,

    /// Bytes of the journal that one batch of destaging moves; at most an eighth of the journal
    /// [default: 128M]
    #[arg(long, env = "HINDCAST_DESTAGE_BATCH", value_name = "SIZE", help_heading = "Tuning")]
    pub destage_batch: Option<Size>,

    /// Share of the journal in use at which destaging starts, in per cent [default: 60]
    #[arg(long, env = "HINDCAST_DESTAGE_START", value_name = "PERCENT", help_heading = "Tuning")]
    pub destage_start: Option<u8>,

    /// Longest time, in milliseconds, that a write waits because its volume writes faster than the
    /// disks can follow, up to 10000. Writes wait for this only while several volumes write. The
    /// other volumes then wait less. With 0, no write waits before the journal is full [default:
    /// 1000]
    #[arg(long, env = "HINDCAST_LONGEST_DELAY", value_name = "MS", help_heading = "Tuning")]
    pub longest_delay: Option<u16>,

    /// Least size of a write that goes to its place at once, without a copy in the journal: 0 for
    /// none, or 4K to 16M. Only pools with the feature "references" have such writes (see hindcast
    /// pool upgrade --help) [default: 64K]
    #[arg(long, env = "HINDCAST_DIRECT_MIN", value_name = "SIZE", help_heading = "Tuning")]
    pub direct_min: Option<Size>,

    /// Share of the journal in use, in per cent, from which on such writes go to their places,
    /// until none comes for a second. Before that they go through the journal, where a burst is
    /// faster, and are written twice. 0 for always to their places; a share above --destage-start
    /// counts as that [default: 0]
    #[arg(long, env = "HINDCAST_DIRECT_START", value_name = "PERCENT", help_heading = "Tuning")]
    pub direct_start: Option<u8>,

    /// Bytes of writes of at least --direct-min after which a history takes an anchor: 0 for never,
    /// or 1M to 1T. What the next of these writes replace then stays in its place, and is not
    /// copied to the history. With 0, volumes with a history do not write in this way [default:
    /// 64M]
    #[arg(long, env = "HINDCAST_KEEP_DISTANCE", value_name = "SIZE", help_heading = "Tuning")]
    pub keep_distance: Option<Size>,

    /// Days from the end of one scrub of the data to the beginning of the next, up to 3650: 0 for
    /// none. Only pools with the feature "sums" are scrubbed (see hindcast pool scrub --help)
    /// [default: 30]
    #[arg(long, env = "HINDCAST_SCRUB_EVERY", value_name = "DAYS", help_heading = "Tuning")]
    pub scrub_every: Option<u16>,

    /// Maximum bytes per second that a scrub reads which the server begins by itself [default: 50M]
    #[arg(long, env = "HINDCAST_SCRUB_RATE", value_name = "SIZE", help_heading = "Tuning")]
    pub scrub_rate: Option<Size>,

    /// Refuse to start while a member of a mirror or RAID-5 is missing, even if the other members
    /// have all data
    #[arg(
        long,
        env = "HINDCAST_REQUIRE_ALL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_name = "BOOL",
        help_heading = "Operation"
    )]
    pub require_all: Option<bool>,

    /// Maximum bytes per second that the rebuild of a member of a mirror or RAID-5 copies: 0 for no
    /// limit. hindcast pool replace and online have a --rate of their own [default: 0]
    #[arg(long, env = "HINDCAST_REBUILD_RATE", value_name = "SIZE", help_heading = "Tuning")]
    pub rebuild_rate: Option<Size>,

    /// Time after which a spare disk (hindcast pool add --spare) takes the place of a member of a
    /// mirror or RAID-5 that is out, such as 10m. 0: a spare never steps in by itself [default:
    /// 10m]
    #[arg(long, env = "HINDCAST_SPARE_AFTER", value_name = "TIME", help_heading = "Tuning")]
    pub spare_after: Option<TimeSpan>,

    /// Price of an hour of recovery, for volumes whose anchors follow the cost model [default:
    /// 1000]
    #[arg(long, env = "HINDCAST_CDP_BETA", value_name = "PRICE", help_heading = "Tuning")]
    pub cdp_beta: Option<f64>,

    /// Price of a gigabyte of history, in the same currency as --cdp-beta [default: 0.1]
    #[arg(long, env = "HINDCAST_CDP_GAMMA", value_name = "PRICE", help_heading = "Tuning")]
    pub cdp_gamma: Option<f64>,

    /// Compress old history harder while the server is idle [default: true]
    #[arg(long, env = "HINDCAST_CDP_RECOMPRESS", value_name = "BOOL", help_heading = "Tuning")]
    pub cdp_recompress: Option<bool>,

    /// Free share of the pool, in per cent, below which the server warns [default: 10]
    #[arg(long, env = "HINDCAST_LOW_SPACE", value_name = "PERCENT", help_heading = "Tuning")]
    pub low_space: Option<u8>,

    /// Open the pool although a part of its journal is damaged or missing. The acknowledged writes
    /// in that part are lost, and the server reports them
    #[arg(long, num_args = 0, default_missing_value = "true", help_heading = "Operation")]
    #[serde(skip)]
    pub accept_journal_loss: Option<bool>,

    /// Time for which deleted volumes can be restored (hindcast trash restore): 0 for none, so that
    /// volume delete deletes at once [default: 24h]
    #[arg(long, env = "HINDCAST_TRASH", value_name = "TIME", help_heading = "Operation")]
    pub trash: Option<TimeSpan>,

    /// Time for which deleted volumes stay although the pool is low on space [default: 1h]
    #[arg(long, env = "HINDCAST_TRASH_MIN", value_name = "TIME", help_heading = "Operation")]
    pub trash_min: Option<TimeSpan>,

    /// Seconds that clients have to finish their requests when the server stops [default: 10]
    #[arg(long, env = "HINDCAST_STOP_TIMEOUT", value_name = "SECONDS", help_heading = "Operation")]
    pub stop_timeout: Option<u32>,

    /// Hours between backups of the metadata into DIR/metadata in the data directory DIR; 0 means
    /// only the backup at each orderly stop [default: 24]
    #[arg(long, env = "HINDCAST_METADATA_INTERVAL", value_name = "HOURS", help_heading = "Operation")]
    pub metadata_interval: Option<u16>,

    /// Number of backups of the metadata to keep in DIR/metadata [default: 3]
    #[arg(long, env = "HINDCAST_METADATA_KEEP", value_name = "N", help_heading = "Operation")]
    pub metadata_keep: Option<u16>,

    /// Filter of log messages, such as "warn" or "info,hindcast_engine=debug" [default: info]
    #[arg(long, env = "HINDCAST_LOG", value_name = "FILTER", help_heading = "Operation")]
    pub log: Option<String>,

    /// Format of the log on stderr [default: text, or journal under systemd]
    #[arg(long, env = "HINDCAST_LOG_FORMAT", value_name = "FORMAT", help_heading = "Operation")]
    pub log_format: Option<LogFormat>,
}

/// How long deleted volumes can be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TrashTimes {
    /// Age at which a volume is purged. Zero: deleted volumes do not go to the trash.
    pub(crate) keep: Duration,
    /// Age before which a volume stays although the pool is low on space.
    pub(crate) least: Duration,
}

/// Whom the server tells about problems. In the file this is the table `[notify]`.
#[derive(Debug, Clone, Default, Args, Deserialize, Merge)]
#[merge(strategy = merge::option::overwrite_none)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Notify {
    /// Command that the server runs by sh -c when a problem of its health begins and when it ends.
    /// It gets the event as JSON on its input, and in HINDCAST_EVENT, HINDCAST_CODE,
    /// HINDCAST_SEVERITY and HINDCAST_MESSAGE. It has 30 seconds
    #[arg(
        id = "notify_command",
        long = "notify-command",
        env = "HINDCAST_NOTIFY_COMMAND",
        value_name = "COMMAND",
        help_heading = "Notices"
    )]
    pub command: Option<String>,

    /// URL, https://… or http://…, to which the server sends the same event as JSON, in a POST
    /// request
    #[arg(
        id = "notify_webhook",
        long = "notify-webhook",
        env = "HINDCAST_NOTIFY_WEBHOOK",
        value_name = "URL",
        hide_env_values = true,
        help_heading = "Notices"
    )]
    pub webhook: Option<String>,

    /// Certificate authorities (PEM) that must have signed the certificate of the --notify-webhook
    /// [default: those that the system trusts]
    #[arg(
        id = "notify_ca",
        long = "notify-ca",
        env = "HINDCAST_NOTIFY_CA",
        value_name = "FILE",
        help_heading = "Notices"
    )]
    pub ca: Option<PathBuf>,

    /// Lowest severity of a problem that is reported; docs/OPERATIONS.md has the severity of each
    /// code [default: warning]
    #[arg(
        id = "notify_min_severity",
        long = "notify-min-severity",
        env = "HINDCAST_NOTIFY_MIN_SEVERITY",
        value_name = "SEVERITY",
        help_heading = "Notices"
    )]
    pub min_severity: Option<Severity>,
}

/// When NBD clients must use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum TlsWhen {
    /// TLS is optional.
    Never,
    /// Clients over TCP must use TLS, and clients on Unix sockets may.
    Tcp,
    /// All clients must use TLS.
    Always,
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
            _ => Err("the permissions of a socket are an octal number, 0600 to 0666".into()),
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Digests {
    /// The initiator chooses.
    Offered,
    /// No connection has digests.
    Refused,
    /// Initiators that do not use digests are refused.
    Required,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Lines of text for people.
    Text,
    /// One JSON object in each line.
    Json,
    /// Lines with priorities and without times, for systemd's journal.
    Journal,
}

/// Commands around the snapshots of one volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Hook {
    /// Command that the server runs by `sh -c` before the snapshot. If it fails, no snapshot is
    /// taken.
    pub before: Option<String>,
    /// Command that the server runs by `sh -c` after the snapshot, in every case.
    pub after: Option<String>,
    /// Seconds after the start of `before` at which `after` runs at the latest. Default: 10.
    pub timeout: Option<u16>,
}

/// Prices of recovery time and of storage, for the cost model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prices {
    /// Price of an hour of recovery.
    pub(crate) hour: f64,
    /// Price of a gigabyte of storage.
    pub(crate) gigabyte: f64,
}

/// How the readable data of a damaged pool is opened.
#[derive(Debug, Clone, Default)]
pub struct Salvaging {
    /// Path of the backup from which the catalog is made, whatever the state of the pool's own
    /// catalog: a file, or a physical volume. `None`: the pool's own catalog, or the newest backup
    /// if that can't be opened.
    pub from: Option<PathBuf>,
    /// Physical volumes whose path has changed.
    pub moved: Vec<Moved>,
}

/// A physical volume whose path has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// Path in the catalog.
    pub old: String,
    /// Current path.
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
            _ => Err("a moved physical volume is OLD=NEW: its path in the catalog, and its path now".into()),
        }
    }
}
