//! Configuration of the server. Flags override environment variables, and those override the TOML
//! file.
//!
//! [`Settings`] holds the options as the operator gave them. [`Config`] is the result, with
//! defaults and after checks.

use crate::certificate::CertificateFiles;
use crate::convert;
use crate::freeze::{DEFAULT_TIMEOUT, Hooks, VolumeHooks};
use crate::identity::local::{SocketAccess, group_number};
use crate::listen::{Address, resolve};
use crate::receivers::{Receivers, Webhook};
use crate::same::Same;
use crate::settings::{Digests, Hook, LogFormat, Notify, Prices, Salvaging, Settings, TlsWhen, TrashTimes};
use crate::web::WebConfig;
use hindcast_api::{ErrorBody, ErrorKind, Placement, Role, Severity, Size};
use hindcast_engine::cdp::model::{PRICE_PER_GIGABYTE, PRICE_PER_HOUR};
use hindcast_engine::disk::allow_many_files;
use hindcast_engine::pool::{self, DIRECT_SIZES, PoolConfig, PoolOptions};
use hindcast_target::iscsi::{DigestPolicy, IscsiConfig, Portal};
use hindcast_target::nbd::{Listen, NbdConfig, TlsConfig, TlsRequired};
use merge::Merge;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum freeze timeout of the commands around a snapshot.
const MAX_FREEZE: Duration = Duration::from_secs(300);
/// Default listener of the admin API over TCP.
const DEFAULT_API: &str = "127.0.0.1:8440";
/// Bounds of `--keep-distance`, in bytes, unless it is 0.
const KEEP: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 40;
/// Maximum of `--longest-delay`, in milliseconds. Clients abandon writes that take much longer.
const MAX_DELAY: u16 = 10_000;
/// Default of `--trash`: a day.
const TRASH_KEEP: Duration = Duration::from_secs(86_400);
/// Default of `--trash-min`: an hour.
const TRASH_LEAST: Duration = Duration::from_secs(3600);
/// Maximum number of days between two scrubs.
const MAX_SCRUB_DAYS: u16 = 3650;

/// The checked settings of a server, with defaults.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) data: PathBuf,
    /// Whether a pool is created if there is none.
    pub(crate) create: bool,
    /// Whether the pool is served read-only although its parts may be of different times.
    pub(crate) force_stale: bool,
    /// How the readable data of a damaged pool is served, read-only. `None`: the pool is opened
    /// normally.
    pub(crate) salvage: Option<Salvaging>,
    pub(crate) api: Vec<Address>,
    /// Another listener of the admin API. The server also starts if it can't listen there.
    pub(crate) api_if_free: Option<Address>,
    /// The admin API over TCP.
    pub(crate) web: WebConfig,
    pub(crate) api_token: Option<String>,
    /// Who may use the Unix socket of the admin API.
    pub(crate) socket: SocketAccess,
    /// Directories in which requests may name paths.
    pub(crate) allowed: Vec<PathBuf>,
    /// Files of the configuration that no request may use: the token and keys.
    pub(crate) own_files: Vec<PathBuf>,
    pub(crate) nbd: NbdConfig,
    /// Whether volumes without access rules are open on NBD listeners that other machines reach.
    pub(crate) nbd_open: bool,
    pub(crate) iscsi: IscsiConfig,
    pub(crate) creation: Creation,
    pub(crate) options: PoolOptions,
    pub(crate) chunk: u64,
    pub(crate) hooks: VolumeHooks,
    pub(crate) prices: Prices,
    /// Receivers of notices about problems.
    pub(crate) receivers: Option<Receivers>,
    pub(crate) stop_timeout: Duration,
    pub(crate) trash: TrashTimes,
    /// Number of backups of the metadata to keep.
    pub(crate) metadata_keep: usize,
    /// Interval between backups of the metadata. `None`: no backups by time.
    pub(crate) metadata_interval: Option<Duration>,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    /// Warnings to log after the log is started.
    pub(crate) warnings: Vec<String>,
}

/// How the pool is created if there is none.
#[derive(Debug, Clone)]
pub(crate) struct Creation {
    pub(crate) pool_size: Option<u64>,
    pub(crate) config: PoolConfig,
    pub(crate) placement: pool::Placement,
    /// Names of the features that the pool gets; `None` for all that are stable.
    pub(crate) features: Option<Vec<String>>,
    /// Names of the given options that apply only to a new pool.
    pub(crate) given: Vec<&'static str>,
}

fn invalid(message: impl Into<String>) -> ErrorBody {
    ErrorBody { kind: ErrorKind::Invalid, message: message.into() }
}

impl Settings {
    /// Adds the options of the file and the defaults. It checks all that can be checked before
    /// anything is opened.
    pub(crate) fn resolve(self) -> Result<Config, ErrorBody> {
        let mut said = self;
        if let Some(path) = &said.config {
            let file = read_file(path)?;
            said.merge(file);
        }
        let data = said.data.clone().ok_or_else(|| {
            invalid(
                "the data directory is missing: give --data DIR, set HINDCAST_DATA, or write data = \"DIR\" in the --config file",
            )
        })?;
        // Absolute, because that is what the status tells to people who are somewhere else.
        let data =
            std::path::absolute(&data).map_err(|e| invalid(format!("--data {}: {e}", data.display())))?;
        let api = match &said.api {
            Some(list) => addresses("api", list)?,
            None => vec![Address::Unix(data.join("hindcast.sock"))],
        };
        let api_token = said.api_token_file.as_deref().map(read_token).transpose()?;
        let nbd = said.nbd()?;
        Ok(Config {
            create: said.create.unwrap_or(false),
            force_stale: said.force_stale.unwrap_or(false),
            salvage: said.salvaging(),
            api_if_free: said.api.is_none().then(|| Address::Tcp(DEFAULT_API.into())),
            web: said.web()?,
            api,
            api_token,
            socket: said.socket()?,
            nbd,
            nbd_open: said.nbd_open == Some(true),
            warnings: said.readable_secrets(),
            allowed: said.allowed()?,
            own_files: said.own_files(),
            iscsi: said.iscsi()?,
            creation: said.creation()?,
            options: said.options()?,
            chunk: said.chunk.map_or(pool::DEFAULT_CHUNK_SIZE, |s| s.0),
            hooks: said.hooks()?,
            prices: said.prices()?,
            trash: TrashTimes {
                keep: said.trash.map_or(TRASH_KEEP, |span| span.0),
                least: said.trash_min.map_or(TRASH_LEAST, |span| span.0),
            },
            receivers: said.receivers(&data)?,
            stop_timeout: Duration::from_secs(said.stop_timeout.unwrap_or(10).into()),
            metadata_keep: said.metadata_keep.unwrap_or(3).max(1).into(),
            // Of what is only shown no backup is made.
            metadata_interval: Some(said.metadata_interval.unwrap_or(24))
                .filter(|hours| *hours > 0 && said.salvage != Some(true) && said.force_stale != Some(true))
                .map(|hours| Duration::from_secs(u64::from(hours) * 3600)),
            log: said.log.unwrap_or_else(|| "info".into()),
            log_format: said.log_format.unwrap_or_else(default_log_format),
            data,
        })
    }

    /// Returns the directories in which requests may name paths: the configured paths, and the same
    /// paths without symbolic links. Every directory must exist.
    fn allowed(&self) -> Result<Vec<PathBuf>, ErrorBody> {
        let mut all = Vec::new();
        for dir in self.allow_path.iter().flatten() {
            let wrong = |why: String| invalid(format!("--allow-path {}: {why}", dir.display()));
            let found = dir.canonicalize().map_err(|e| wrong(e.to_string()))?;
            if !found.is_dir() {
                return Err(wrong("it is not a directory".into()));
            }
            all.extend([std::path::absolute(dir).map_err(|e| wrong(e.to_string()))?, found]);
        }
        all.dedup();
        Ok(all)
    }

    /// Returns the settings of the admin API over TCP.
    fn web(&self) -> Result<WebConfig, ErrorBody> {
        let plain = self.api_plain == Some(true);
        let files = match (&self.api_tls_cert, &self.api_tls_key) {
            (None, None) => None,
            (Some(_), Some(_)) if plain => {
                return Err(invalid("--api-plain and --api-tls-cert exclude each other"));
            }
            (Some(cert), Some(key)) => Some(CertificateFiles { cert: cert.clone(), key: key.clone() }),
            _ => return Err(invalid("TLS on the admin API needs both --api-tls-cert and --api-tls-key")),
        };
        let hosts = self.api_host.clone().unwrap_or_default();
        if let Some(bad) = hosts.iter().find(|name| name.is_empty() || name.contains([':', '/', ' '])) {
            return Err(invalid(format!("--api-host {bad}: give a name without scheme and port")));
        }
        Ok(WebConfig { plain, files, hosts })
    }

    /// Returns who may use the Unix socket of the admin API.
    fn socket(&self) -> Result<SocketAccess, ErrorBody> {
        let group = self.api_socket_group.as_deref().map(group_number).transpose()?;
        if group.is_none() && self.api_socket_role.is_some() {
            return Err(invalid("--api-socket-role needs --api-socket-group"));
        }
        Ok(SocketAccess { group, role: self.api_socket_role.unwrap_or(Role::Operator) })
    }

    fn own_files(&self) -> Vec<PathBuf> {
        let named = [
            &self.config,
            &self.api_token_file,
            &self.api_tls_cert,
            &self.api_tls_key,
            &self.nbd_tls_cert,
            &self.nbd_tls_key,
            &self.nbd_tls_ca,
            &self.notify.ca,
        ];
        named.into_iter().flatten().cloned().collect()
    }

    /// Returns how the readable data of a damaged pool is opened. `None`: the operator did not ask
    /// for that.
    fn salvaging(&self) -> Option<Salvaging> {
        let moved = self.salvage_moved.clone().unwrap_or_default();
        self.salvage.filter(|wanted| *wanted)?;
        Some(Salvaging { from: self.salvage_from.clone(), moved })
    }

    /// Returns the commands around snapshots, by volume.
    fn hooks(&self) -> Result<VolumeHooks, ErrorBody> {
        let said = self.hooks.iter().flatten();
        said.map(|(volume, said)| {
            let wrong = |why: &str| invalid(format!("hooks.{volume}: {why}"));
            if said.before.is_some() && said.after.is_none() {
                return Err(wrong(
                    "it has a command before, and none after; add one, which thaws what the first froze",
                ));
            }
            let timeout = said.timeout.map_or(DEFAULT_TIMEOUT, |s| Duration::from_secs(s.into()));
            if timeout.is_zero() || timeout > MAX_FREEZE {
                return Err(wrong("the timeout must be 1 to 300 seconds"));
            }
            let Hook { before, after, .. } = said.clone();
            Ok((volume.clone(), Hooks { before, after, timeout }))
        })
        .collect()
    }

    /// Returns the receivers of notices. `data` is the data directory.
    fn receivers(&self, data: &Path) -> Result<Option<Receivers>, ErrorBody> {
        let Notify { command, webhook, ca, min_severity } = &self.notify;
        let given = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        let (command, url) = (given(command), given(webhook));
        if url.is_none() && ca.is_some() {
            return Err(invalid("--notify-ca needs --notify-webhook"));
        }
        // The URL may hold a secret, so the error does not repeat it.
        let webhook = url.map(|url| Webhook::new(&url, ca.as_deref())).transpose();
        let webhook = webhook.map_err(|why| invalid(format!("--notify-webhook: {why}")))?;
        Ok((command.is_some() || webhook.is_some()).then(|| Receivers {
            command,
            webhook,
            min_severity: min_severity.unwrap_or(Severity::Warning),
            data: data.display().to_string(),
        }))
    }

    /// Returns the prices for the cost model of CDP.
    fn prices(&self) -> Result<Prices, ErrorBody> {
        let price = |what: &str, said: Option<f64>, default: f64| match said.unwrap_or(default) {
            price if price.is_finite() && price >= 0.0 => Ok(price),
            price => Err(invalid(format!("{what}: {price} is not a price; it must be a number above 0"))),
        };
        let hour = price("cdp-beta", self.cdp_beta, PRICE_PER_HOUR)?;
        let gigabyte = price("cdp-gamma", self.cdp_gamma, PRICE_PER_GIGABYTE)?;
        if hour == 0.0 || gigabyte == 0.0 {
            return Err(invalid("cdp-beta and cdp-gamma: both must be above 0"));
        }
        Ok(Prices { hour, gigabyte })
    }

    fn nbd(&self) -> Result<NbdConfig, ErrorBody> {
        let addresses = match &self.nbd {
            Some(list) => addresses("nbd", list)?,
            None => vec![Address::Tcp("127.0.0.1:10809".into())],
        };
        let tls = match (&self.nbd_tls_cert, &self.nbd_tls_key) {
            (Some(cert), Some(key)) => {
                Some(TlsConfig { cert: cert.clone(), key: key.clone(), client_ca: self.nbd_tls_ca.clone() })
            }
            (None, None) if self.nbd_tls_ca.is_none() => None,
            _ => return Err(invalid("TLS on NBD needs both --nbd-tls-cert and --nbd-tls-key")),
        };
        let tls_required = match self.nbd_tls_required {
            // Who names those that client certificates must come from does not mean that clients
            // may do without.
            None if tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()) => TlsRequired::Tcp,
            None | Some(TlsWhen::Never) => TlsRequired::Never,
            Some(_) if tls.is_none() => {
                return Err(invalid("--nbd-tls-required needs --nbd-tls-cert and --nbd-tls-key"));
            }
            Some(TlsWhen::Tcp) => TlsRequired::Tcp,
            Some(TlsWhen::Always) => TlsRequired::Always,
        };
        let default = NbdConfig::default();
        let max_connections = self.nbd_max_connections.map_or(default.max_connections, |n| n as usize);
        Ok(NbdConfig {
            listen: addresses.iter().map(nbd_listen).collect::<Result<_, _>>()?,
            unix_mode: self.nbd_socket_mode.map_or(default.unix_mode, |mode| mode.0),
            max_connections,
            max_connections_per_address: half(self.nbd_max_connections_per_address, max_connections),
            max_in_flight: self.nbd_max_in_flight.map_or(default.max_in_flight, |s| s.0),
            tls,
            tls_required,
            ..default
        })
    }

    /// Returns a warning for each file with a secret that users other than its owner can read.
    fn readable_secrets(&self) -> Vec<String> {
        let secrets = [
            ("--api-token-file", "the token", &self.api_token_file),
            ("--api-tls-key", "the private key", &self.api_tls_key),
            ("--nbd-tls-key", "the private key", &self.nbd_tls_key),
        ];
        let told = secrets.into_iter().filter_map(|(option, what, path)| {
            let path = path.as_ref()?;
            // A file that is not there is another error's business.
            let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
            (mode & 0o077 != 0).then(|| {
                let shown = path.display();
                format!("{option} {shown}: other users than its owner can read {what} (mode {mode:04o}); run chmod 600 {shown}")
            })
        });
        told.collect()
    }

    fn iscsi(&self) -> Result<IscsiConfig, ErrorBody> {
        let default = IscsiConfig::default();
        let portals = match &self.iscsi {
            Some(list) if list.as_slice() == ["none"] => Vec::new(),
            Some(list) => list.iter().map(|text| portal(text)).collect::<Result<_, _>>()?,
            None => vec![portal("127.0.0.1:3260")?],
        };
        let digests = match self.iscsi_digests {
            None | Some(Digests::Offered) => DigestPolicy::Offered,
            Some(Digests::Refused) => DigestPolicy::Refused,
            Some(Digests::Required) => DigestPolicy::Required,
        };
        let max_connections = self.iscsi_max_connections.map_or(default.max_connections, |n| n as usize);
        let max_sessions = self.iscsi_max_sessions.map_or(default.max_sessions, |n| n as usize);
        Ok(IscsiConfig {
            portals,
            max_connections,
            max_connections_per_address: half(self.iscsi_max_connections_per_address, max_connections),
            max_sessions,
            max_sessions_per_address: half(self.iscsi_max_sessions_per_address, max_sessions),
            max_in_flight: self.iscsi_max_in_flight.map_or(default.max_in_flight, |s| s.0),
            header_digest: digests,
            data_digest: digests,
            ..default
        })
    }

    fn creation(&self) -> Result<Creation, ErrorBody> {
        let mut config = PoolConfig::default();
        if let Some(size) = self.journal_size {
            config.journal_size = size.0;
        }
        config.segment_size = match self.segment_size {
            Some(size) => size.0,
            None => default_segment(config.journal_size),
        };
        if let Some(size) = self.extent_size {
            config.extent_size = size.0;
        }
        if let Some(size) = self.atomic_unit {
            config.atomic_unit =
                u32::try_from(size.0).map_err(|_| invalid("--atomic-unit must be 512 or 4096"))?;
        }
        let placement = self.placement.unwrap_or(Placement::Anywhere);
        let placement = convert::placement(placement, config.extent_size, (None, None, None))
            .map_err(|error| invalid(error.to_string()))?;
        let given = [
            ("--pool-size", self.pool_size.is_some()),
            ("--journal-size", self.journal_size.is_some()),
            ("--segment-size", self.segment_size.is_some()),
            ("--extent-size", self.extent_size.is_some()),
            ("--atomic-unit", self.atomic_unit.is_some()),
            ("--placement", self.placement.is_some()),
            ("--pool-features", self.pool_features.is_some()),
        ];
        let features = self.pool_features.as_deref().map(|list| match list {
            "none" => Vec::new(),
            list => list.split(',').map(|name| name.trim().to_owned()).collect(),
        });
        Ok(Creation {
            pool_size: self.pool_size.map(|s| s.0),
            config,
            placement,
            features,
            given: given.into_iter().filter(|(_, said)| *said).map(|(name, _)| name).collect(),
        })
    }

    fn set_layout_options(&self, options: &mut PoolOptions) {
        options.requires_all = self.require_all.unwrap_or(false);
        if let Some(rate) = self.rebuild_rate {
            options.rebuild_rate = rate.0;
        }
        if let Some(after) = self.spare_after {
            options.spare_after = Some(after.0).filter(|after| !after.is_zero());
        }
    }

    fn options(&self) -> Result<PoolOptions, ErrorBody> {
        let mut options =
            PoolOptions { open_files: open_files(allow_many_files()), ..PoolOptions::default() };
        let bytes = |name: &str, size: Size| {
            usize::try_from(size.0).map_err(|_| invalid(format!("--{name} is larger than the address space")))
        };
        if let Some(size) = self.map_cache {
            options.map_cache_bytes = bytes("map-cache", size)?;
        }
        if let Some(policy) = self.map_cache_policy {
            options.map_cache_policy = policy.same();
        }
        if let Some(size) = self.catalog_cache {
            options.catalog_cache_bytes = bytes("catalog-cache", size)?;
        }
        if let Some(threads) = self.destage_threads {
            options.destage_threads = usize::from(threads.max(1));
        }
        if let Some(size) = self.destage_batch {
            options.batch_bytes = size.0;
        }
        if let Some(ms) = self.longest_delay {
            if ms > MAX_DELAY {
                return Err(invalid(format!("--longest-delay must be 0 to {MAX_DELAY} milliseconds")));
            }
            options.longest_delay = Duration::from_millis(ms.into());
        }
        if let Some(size) = self.direct_min {
            if size.0 != 0 && !DIRECT_SIZES.contains(&size.0) {
                return Err(invalid("--direct-min must be 0, or 4K to 16M"));
            }
            options.direct_min = Some(size.0).filter(|bytes| *bytes > 0);
        }
        if let Some(size) = self.keep_distance {
            if size.0 != 0 && !KEEP.contains(&size.0) {
                return Err(invalid("--keep-distance must be 0, or 1M to 1T"));
            }
            options.keep_distance = Some(size.0).filter(|bytes| *bytes > 0);
        }
        if let Some(days) = self.scrub_every {
            if days > MAX_SCRUB_DAYS {
                return Err(invalid(format!("--scrub-every must be 0 to {MAX_SCRUB_DAYS} days")));
            }
            options.data_scrub_interval = Duration::from_secs(u64::from(days) * 86_400);
        }
        if let Some(rate) = self.scrub_rate {
            options.data_scrub_rate = rate.0;
        }
        self.set_layout_options(&mut options);
        if let Some(said) = self.cdp_recompress {
            options.recompress_history = said;
        }
        options.accept_journal_loss = self.accept_journal_loss.unwrap_or(false);
        for (name, said, place) in [
            ("destage-start", self.destage_start, &mut options.destage_start_percent),
            ("direct-start", self.direct_start, &mut options.direct_start_percent),
            ("low-space", self.low_space, &mut options.low_space_percent),
        ] {
            match said {
                Some(percent) if percent > 100 => {
                    return Err(invalid(format!("--{name} must be 0 to 100 per cent")));
                }
                Some(percent) => *place = percent,
                None => {}
            }
        }
        Ok(options)
    }
}

/// Returns the limit of one address. Default: half of `all`.
fn half(said: Option<u32>, all: usize) -> usize {
    said.map_or(all.div_ceil(2), |n| n as usize)
}

/// Returns the default size of a segment. The journal gets at least eight segments if it is large
/// enough, so that segments can be recycled.
fn default_segment(journal_size: u64) -> u64 {
    let eighth = (journal_size / 8).max(1);
    (1u64 << eighth.ilog2()).clamp(4 << 20, PoolConfig::default().segment_size)
}

fn default_log_format() -> LogFormat {
    if std::env::var_os("JOURNAL_STREAM").is_some() { LogFormat::Journal } else { LogFormat::Text }
}

fn read_file(path: &Path) -> Result<Settings, ErrorBody> {
    let text = std::fs::read_to_string(path).map_err(|e| invalid(format!("read {}: {e}", path.display())))?;
    toml::from_str(&text).map_err(|e| {
        // The library's own text spans lines with a drawing; the first line and the message say it
        // all.
        let line =
            e.span().map_or(0, |span| text.get(..span.start).unwrap_or(&text).matches('\n').count() + 1);
        invalid(format!("read {}: line {line}: {}", path.display(), e.message()))
    })
}

fn read_token(path: &Path) -> Result<String, ErrorBody> {
    let text = std::fs::read_to_string(path).map_err(|e| invalid(format!("read {}: {e}", path.display())))?;
    let token = text.trim();
    if token.len() < 16 || !token.chars().all(|c| c.is_ascii_graphic()) {
        return Err(invalid(format!(
            "{}: a token must have at least 16 printable characters, for example from `openssl rand -hex 32`",
            path.display()
        )));
    }
    Ok(token.to_owned())
}

/// Returns the address of an NBD listener. A host name is resolved once, at the start, and its
/// first address is used.
fn nbd_listen(address: &Address) -> Result<Listen, ErrorBody> {
    match address {
        Address::Unix(path) => Ok(Listen::Unix(path.clone())),
        Address::Tcp(host_port) => look_up("nbd", host_port).map(Listen::Tcp),
    }
}

fn look_up(option: &str, host_port: &str) -> Result<SocketAddr, ErrorBody> {
    resolve(host_port).map_err(|e| invalid(format!("--{option} {host_port}: {e}")))
}

/// Parses a portal, `HOST:PORT[/GROUP][=ADVERTISED]`.
fn portal(text: &str) -> Result<Portal, ErrorBody> {
    let wrong = |why: &str| invalid(format!("--iscsi {text}: {why}"));
    let (place, advertise) = text.split_once('=').map_or((text, None), |(p, a)| (p, Some(a)));
    if advertise.is_some_and(|a| a.is_empty() || a.contains([',', ' '])) {
        return Err(wrong("the advertised address must be HOST or HOST:PORT"));
    }
    let (place, group) = match place.split_once('/') {
        None => (place, 1),
        Some((place, group)) => match group.parse::<u16>() {
            Ok(group) if group > 0 => (place, group),
            _ => return Err(wrong("the portal group tag must be a number from 1 to 65535")),
        },
    };
    match place.parse() {
        Ok(Address::Tcp(host_port)) => Ok(Portal {
            listen: look_up("iscsi", &host_port)?,
            group,
            advertise: advertise.map(str::to_owned),
        }),
        Ok(Address::Unix(_)) => Err(wrong("iSCSI works over TCP only: give HOST:PORT")),
        Err(why) => Err(wrong(&why)),
    }
}

/// Parses a list of addresses. The single word `none` is an empty list.
fn addresses(option: &str, list: &[String]) -> Result<Vec<Address>, ErrorBody> {
    if let [only] = list
        && only == "none"
    {
        return Ok(Vec::new());
    }
    list.iter()
        .map(|text| text.parse().map_err(|e: String| invalid(format!("--{option} {text}: {e}"))))
        .collect()
}

/// Returns the maximum number of open segments of histories, if the process may have `limit` files
/// open. Clients need descriptors too.
fn open_files(limit: u64) -> usize {
    (limit / 8).clamp(16, 1024) as usize
}

#[cfg(test)]
mod tests;
