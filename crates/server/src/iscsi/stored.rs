//! The format of the file of targets: JSON. The header of the file holds the version.
//!
//! The server checks content that it reads like input of the operator. If a check refuses the
//! content, the file is damaged, because the server writes only checked values.

use super::credentials::{Account, Chap, Secret};
use super::nbd_rules::NbdRule;
use super::registry::{Guard, MAX_LUN, Named, Registry, TargetSettings};
use crate::passthrough::{FileSpec, identity_of_serial};
use hindcast_api::Access;
use hindcast_engine::{Error, ErrorKind, Result};
use hindcast_target::iscsi::access::{AddressRange, IscsiName, LunMask, NamePattern, Permit, Rule};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The name of the file in the data directory.
pub(crate) const FILE: &str = "targets.json";
/// The kind of the file, as its header states it.
pub(crate) const KIND: &str = "targets";
/// The version of the format.
pub(crate) const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRegistry {
    all: StoredGuard,
    targets: Vec<StoredTarget>,
    volumes: Vec<StoredVolume>,
    files: Vec<StoredFile>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    making: Vec<StoredMaking>,
}

/// A volume that is being created as a copy of another one.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredMaking {
    name: String,
    settings: StoredSettings,
}

fn yes() -> bool {
    true
}

fn is_true(said: &bool) -> bool {
    *said
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredGuard {
    rules: Vec<StoredRule>,
    chap: Option<StoredChap>,
    /// Absent in files of older builds, and without such rules. Older builds refuse a file that has
    /// it, because they would let every client in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    nbd_rules: Vec<StoredNbdRule>,
}

/// An access rule for NBD.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredNbdRule {
    addresses: Vec<String>,
    /// `CN=NAME`.
    certificate: Option<String>,
    access: Access,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredSettings {
    enabled: bool,
    alias: Option<String>,
    guard: StoredGuard,
    /// Absent in files of older builds, and when the value is true.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    nbd: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredTarget {
    name: String,
    settings: StoredSettings,
    luns: Vec<(u16, String)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredVolume {
    uuid: String,
    settings: StoredSettings,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredFile {
    uuid: String,
    path: String,
    read_only: bool,
    block_size: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    serial: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRule {
    initiator: String,
    address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    permit: Option<StoredPermit>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredPermit {
    read_only: bool,
    luns: Option<Vec<u16>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredChap {
    incoming: StoredAccount,
    /// Further accounts. Older builds supported one account, in `incoming`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    others: Vec<StoredAccount>,
    mutual: Option<StoredAccount>,
}

/// An account. It has no `Debug`, because it holds a secret.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredAccount {
    user: String,
    /// The secret in hexadecimal, because a secret can hold any bytes.
    secret: String,
}

/// Encodes the registry as the content of the file.
pub(crate) fn encode(registry: &Registry) -> Result<Vec<u8>> {
    let stored = StoredRegistry {
        all: guard(&registry.all),
        targets: registry
            .named
            .iter()
            .map(|(name, target)| StoredTarget {
                name: name.clone(),
                settings: settings(&target.settings),
                luns: target.luns.iter().map(|(lun, backing)| (*lun, backing.to_string())).collect(),
            })
            .collect(),
        volumes: registry
            .volumes
            .iter()
            .map(|(id, s)| StoredVolume { uuid: id.to_string(), settings: settings(s) })
            .collect(),
        files: registry
            .files
            .values()
            .map(|file| StoredFile {
                uuid: file.uuid.to_string(),
                path: file.path.clone(),
                read_only: file.read_only,
                block_size: file.block_size,
                serial: file.serial.clone(),
            })
            .collect(),
        making: registry
            .making
            .iter()
            .map(|(name, s)| StoredMaking { name: name.clone(), settings: settings(s) })
            .collect(),
    };
    serde_json::to_vec_pretty(&stored)
        .map_err(|e| Error::with_source(ErrorKind::Invalid, format!("write {FILE}"), e))
}

/// Decodes the content of the file. Fails with [`ErrorKind::Corrupt`] if the content is not valid.
pub(crate) fn decode(bytes: &[u8]) -> Result<Registry> {
    let damaged = |why: String| Error::new(ErrorKind::Corrupt, format!("read {FILE}: {why}"));
    let stored: StoredRegistry = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
    registry(stored).map_err(damaged)
}

fn guard(guard: &Guard) -> StoredGuard {
    let account = |a: &Account| StoredAccount { user: a.user.clone(), secret: hex(a.secret.expose()) };
    StoredGuard {
        rules: guard
            .rules
            .iter()
            .map(|rule| StoredRule {
                initiator: rule.initiator.to_string(),
                address: rule.address.map(|a| a.to_string()),
                user: rule.user.clone(),
                permit: rule.permit.as_ref().map(|permit| StoredPermit {
                    read_only: permit.read_only,
                    luns: match &permit.luns {
                        LunMask::All => None,
                        LunMask::Only(luns) => Some(luns.clone()),
                    },
                }),
            })
            .collect(),
        nbd_rules: guard
            .nbd_rules
            .iter()
            .map(|rule| StoredNbdRule {
                addresses: rule.addresses.iter().map(AddressRange::to_string).collect(),
                certificate: rule.certificate(),
                access: rule.access,
            })
            .collect(),
        chap: guard.chap.as_ref().and_then(|chap| {
            let (first, others) = chap.accounts.split_first()?;
            Some(StoredChap {
                incoming: account(first),
                others: others.iter().map(account).collect(),
                mutual: chap.mutual.as_ref().map(account),
            })
        }),
    }
}

fn settings(settings: &TargetSettings) -> StoredSettings {
    let TargetSettings { enabled, alias, guard: own, nbd } = settings;
    StoredSettings { enabled: *enabled, alias: alias.clone(), guard: guard(own), nbd: *nbd }
}

/// A result whose error describes damage in a file with a valid checksum.
type Read<T> = std::result::Result<T, String>;

fn registry(stored: StoredRegistry) -> Read<Registry> {
    let mut registry = Registry { all: read_guard(stored.all)?, ..Registry::default() };
    for file in stored.files {
        let spec = FileSpec {
            uuid: read_uuid(&file.uuid)?,
            path: file.path,
            read_only: file.read_only,
            block_size: file.block_size,
            serial: file.serial,
        };
        if let Some(serial) = &spec.serial
            && identity_of_serial(serial).map_err(text)? != (spec.uuid, spec.serial.clone())
        {
            return Err(format!("{serial:?} is not the serial number of {spec:?}"));
        }
        if !matches!(spec.block_size, 512 | 4096) || !spec.path.starts_with('/') {
            return Err(format!("{spec:?} can't be exported"));
        }
        registry.files.insert(spec.uuid, spec);
    }
    for volume in stored.volumes {
        registry.volumes.insert(read_uuid(&volume.uuid)?, read_settings(volume.settings)?);
    }
    for making in stored.making {
        registry.making.insert(making.name, read_settings(making.settings)?);
    }
    for target in stored.targets {
        let name: IscsiName = target.name.parse().map_err(text)?;
        let mut luns = BTreeMap::new();
        for (lun, backing) in target.luns {
            if lun > MAX_LUN || luns.insert(lun, read_uuid(&backing)?).is_some() {
                return Err(format!("{name} can't have LUN {lun}, or has it twice"));
            }
        }
        let named = Named { settings: read_settings(target.settings)?, luns };
        if registry.named.insert(name.to_string(), named).is_some() {
            return Err(format!("there are two targets {name}"));
        }
    }
    Ok(registry)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn read_settings(stored: StoredSettings) -> Read<TargetSettings> {
    let StoredSettings { enabled, alias, guard, nbd } = stored;
    Ok(TargetSettings { enabled, alias, guard: read_guard(guard)?, nbd })
}

fn read_guard(stored: StoredGuard) -> Read<Guard> {
    let chap = stored.chap.map(|chap| {
        let mutual = chap.mutual.map(read_account).transpose()?;
        let mut accounts = vec![read_account(chap.incoming)?];
        for other in chap.others {
            let other = read_account(other)?;
            if accounts.iter().any(|known| known.user == other.user) {
                return Err(format!("there are two accounts {}", other.user));
            }
            accounts.push(other);
        }
        Ok(Chap { accounts, mutual })
    });
    Ok(Guard {
        rules: stored.rules.into_iter().map(read_rule).collect::<Read<_>>()?,
        chap: chap.transpose()?,
        nbd_rules: stored
            .nbd_rules
            .into_iter()
            .map(|rule| NbdRule::parse(&rule.addresses, rule.certificate.as_deref(), rule.access))
            .collect::<Read<_>>()?,
    })
}

fn read_rule(stored: StoredRule) -> Read<Rule> {
    Ok(Rule {
        initiator: NamePattern::kept(&stored.initiator).map_err(text)?,
        address: stored.address.map(|a| a.parse()).transpose().map_err(text)?,
        user: stored.user,
        permit: stored.permit.map(|permit| Permit {
            read_only: permit.read_only,
            luns: permit.luns.map_or(LunMask::All, LunMask::only),
        }),
    })
}

fn read_account(stored: StoredAccount) -> Read<Account> {
    let secret = Secret::new(unhex(&stored.secret)?).map_err(text)?;
    Account::new(stored.user, secret).map_err(text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn read_uuid(text: &str) -> Read<Uuid> {
    Uuid::try_parse(&text.replace('-', "")).map_err(|_| format!("{text:?} is not a UUID"))
}

/// Decodes hexadecimal digits. The error does not repeat the text, because the text can be a
/// secret.
fn unhex(text: &str) -> Read<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    let wrong = || "hexadecimal digits are expected".to_owned();
    let digits = digits.filter(|d| d.len() % 2 == 0).ok_or_else(wrong)?;
    digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).map_err(|_| wrong())).collect()
}
