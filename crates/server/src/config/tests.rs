//! Tests of the configuration that settings lead to, and of settings that are refused.

use super::*;
use clap::Parser;
use hindcast_engine::pool::CachePolicy;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    settings: Settings,
}

fn parse(args: &[&str]) -> Settings {
    Cli::try_parse_from([&["serve"], args].concat()).unwrap().settings
}

fn refused(args: &[&str]) -> String {
    parse(args).resolve().unwrap_err().message
}

#[test]
fn a_directory_is_enough() {
    let config = parse(&["--data", "/srv/x"]).resolve().unwrap();
    assert_eq!(config.api, [Address::Unix("/srv/x/hindcast.sock".into())]);
    assert_eq!(config.nbd.listen, [Listen::Tcp("127.0.0.1:10809".parse().unwrap())]);
    assert_eq!(config.creation.config, PoolConfig::default());
    assert!(config.creation.given.is_empty());
    assert!(!config.create, "a new pool is made only where that was asked for");
    assert!(refused(&[]).contains("--data"));
}

#[test]
fn flags_win_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("h.toml");
    std::fs::write(
        &file,
        "data = '/a'\nnbd = ['[::1]:1', 'unix:/x']\nmap-cache = '1M'\ncatalog-cache = 4096\n\
         map-cache-policy = 'lru'\nplacement = 'contiguous'\ncreate = true\nlog-format = 'json'\nnbd-tls-required = 'never'\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let config = parse(&["--config", file, "--data", "/b", "--map-cache", "2M"]).resolve().unwrap();
    assert_eq!(config.data, Path::new("/b"));
    assert_eq!(config.nbd.listen, [Listen::Tcp("[::1]:1".parse().unwrap()), Listen::Unix("/x".into())]);
    assert_eq!(config.options.map_cache_bytes, 2 << 20);
    assert_eq!(config.options.catalog_cache_bytes, 4096);
    assert_eq!(config.options.map_cache_policy, CachePolicy::Lru);
    assert_eq!(config.creation.placement, pool::Placement::Contiguous);
    assert_eq!(config.creation.given, ["--placement"]);
    assert_eq!(config.log_format, LogFormat::Json);
    assert!(config.create);
    assert!(!parse(&["--config", file, "--create=false"]).resolve().unwrap().create);
    assert!(parse(&["--data", "/b", "--create"]).resolve().unwrap().create);
}

#[test]
fn limits_and_paths_come_from_the_command_line_or_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().canonicalize().unwrap();
    let link = real.join("link");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let data = &["--data", "d"][..];
    let config = parse(&[data, &["--allow-path", link.to_str().unwrap()]].concat()).resolve().unwrap();
    assert_eq!(config.allowed, [link, real.clone()]);
    assert!(refused(&[data, &["--allow-path", "/nonexistent"]].concat()).contains("--allow-path"));
    let file = real.join("h.toml");
    let text = format!(
        "data = '/a'\nallow-path = ['{}']\nnbd-socket-mode = '0660'\nnbd-max-connections = 100\n",
        real.display()
    );
    std::fs::write(&file, text).unwrap();
    let args = ["--config", file.to_str().unwrap(), "--iscsi-max-sessions-per-address", "7"];
    let config = parse(&args).resolve().unwrap();
    assert_eq!(config.allowed, [real]);
    assert_eq!((config.nbd.unix_mode, config.nbd.max_connections_per_address), (0o660, 50));
    assert_eq!((config.iscsi.max_sessions, config.iscsi.max_sessions_per_address), (1024, 7));
    assert_eq!(config.own_files, [file]);
    assert!("0777".parse::<crate::settings::SocketMode>().is_err());
}

#[test]
fn hooks_come_from_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("h.toml");
    let file = path.to_str().unwrap();
    let with = |text: &str| {
        std::fs::write(&path, format!("data = '/a'\n[hooks.db]\n{text}")).unwrap();
        parse(&["--config", file]).resolve()
    };
    let config = with("before = 'fsfreeze -f /x'\nafter = 'fsfreeze -u /x'\n").unwrap();
    assert_eq!(config.hooks["db"].before.as_deref(), Some("fsfreeze -f /x"));
    assert_eq!(config.hooks["db"].timeout, DEFAULT_TIMEOUT);
    assert_eq!(with("after = 'x'\ntimeout = 3\n").unwrap().hooks["db"].timeout, Duration::from_secs(3));
    for (bad, part) in [
        ("before = 'x'\n", "thaws"),
        ("after = 'x'\ntimeout = 0\n", "1 to 300"),
        ("after = 'x'\ntimeout = 301\n", "1 to 300"),
        ("afer = 'x'\n", "line 3"),
    ] {
        let message = with(bad).unwrap_err().message;
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_file_with_a_mistake_is_named_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("h.toml");
    for (text, line) in [("data = '/a'\nmap-cash = 1\n", 2), ("data = 3\n", 1), ("x", 1), ("chunk = '1Q'", 1)]
    {
        std::fs::write(&file, text).unwrap();
        let message = refused(&["--config", file.to_str().unwrap()]);
        assert!(message.contains(&format!("h.toml: line {line}: ")), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
    assert!(refused(&["--config", "/nonexistent.toml"]).contains("/nonexistent.toml"));
}

#[test]
fn a_token_is_long_enough() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "short\n").unwrap();
    let token = token.to_str().unwrap();
    let args = ["--data", "d", "--api", "127.0.0.1:1", "--api-token-file", token];
    assert!(refused(&args).contains("at least 16"));
    std::fs::write(token, "0123456789abcdef\n").unwrap();
    assert_eq!(parse(&args).resolve().unwrap().api_token.as_deref(), Some("0123456789abcdef"));
}

#[test]
fn the_api_has_a_default_over_tcp_and_tls_is_consistent() {
    let data = ["--data", "/d"];
    let config = parse(&data).resolve().unwrap();
    assert_eq!(config.api, [Address::Unix("/d/hindcast.sock".into())]);
    assert_eq!(config.api_if_free, Some(Address::Tcp("127.0.0.1:8440".into())));
    let config = parse(&[&data[..], &["--api", "10.0.0.5:1", "--api-host", "a.example,b"]].concat());
    let config = config.resolve().unwrap();
    assert_eq!((config.api.len(), config.api_if_free), (1, None));
    assert_eq!(config.web.hosts, ["a.example", "b"]);
    let refused = |args: &[&str]| refused(&[&data[..], args].concat());
    assert!(refused(&["--api-tls-cert", "c"]).contains("--api-tls-key"));
    assert!(refused(&["--api-tls-cert", "c", "--api-tls-key", "k", "--api-plain"]).contains("exclude"));
    assert!(refused(&["--api-host", "https://a"]).contains("--api-host"));
    assert!(refused(&["--api-socket-role", "viewer"]).contains("--api-socket-group"));
}

#[test]
fn tls_needs_both_halves() {
    let data = &["--data", "d"][..];
    for args in [
        &["--nbd-tls-cert", "c"][..],
        &["--nbd-tls-key", "k"],
        &["--nbd-tls-required"],
        &["--nbd-tls-ca", "a"],
    ] {
        assert!(refused(&[data, args].concat()).contains("--nbd-tls-key"));
    }
    let both = &["--nbd-tls-cert", "c", "--nbd-tls-key", "k"][..];
    for (when, expected) in [
        ("--nbd-tls-required", TlsRequired::Always),
        ("--nbd-tls-required=tcp", TlsRequired::Tcp),
        ("--nbd-tls-required=never", TlsRequired::Never),
    ] {
        let config = parse(&[data, both, &[when]].concat()).resolve().unwrap();
        assert_eq!(config.nbd.tls_required, expected);
        assert!(config.nbd.tls.is_some());
    }
}

#[test]
fn an_authority_of_clients_means_that_tls_is_required() {
    let all = ["--data", "d", "--nbd-tls-cert", "c", "--nbd-tls-key", "k", "--nbd-tls-ca", "a"];
    let required = |args: &[&str]| parse(&[&all, args].concat()).resolve().unwrap().nbd.tls_required;
    assert_eq!(required(&[]), TlsRequired::Tcp);
    assert_eq!(required(&["--nbd-tls-required=never"]), TlsRequired::Never, "if that is said");
    assert_eq!(required(&["--nbd-tls-required"]), TlsRequired::Always);
}

#[test]
fn nbd_for_everybody_has_to_be_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("h.toml");
    let open = |args: &[&str]| parse(args).resolve().unwrap().nbd_open;
    for listen in
        ["0.0.0.0:1", "[::]:1", "192.0.2.7:1", "127.0.0.1:1,0.0.0.0:2", "127.0.0.1:1", "unix:/x", "none"]
    {
        let said = ["--data", "d", "--nbd", listen];
        assert!(!open(&said), "{listen}");
        assert!(!open(&[&said[..], &["--nbd-open=false"]].concat()), "{listen}");
        assert!(open(&[&said[..], &["--nbd-open"]].concat()), "{listen}");
    }
    std::fs::write(&file, "data = '/a'\nnbd = ['0.0.0.0:1']\nnbd-open = true\n").unwrap();
    let from_file = ["--config", file.to_str().unwrap()];
    assert!(open(&from_file));
    assert!(!open(&[&from_file[..], &["--nbd-open=false"]].concat()));
}

#[test]
fn secrets_that_others_can_read_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let (token, key) = (dir.path().join("token"), dir.path().join("key"));
    std::fs::write(&token, "0123456789abcdef").unwrap();
    std::fs::write(&key, "").unwrap();
    let paths = [token.to_str().unwrap(), key.to_str().unwrap()];
    let args =
        ["--data", "d", "--api-token-file", paths[0], "--nbd-tls-cert", "c", "--nbd-tls-key", paths[1]];
    for (mode, warned) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true), (0o666, true)] {
        for path in paths {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let warnings = parse(&args).resolve().unwrap().warnings;
        let named = paths.iter().filter(|path| warnings.iter().any(|w| w.contains(*path))).count();
        assert_eq!(named, if warned { 2 } else { 0 }, "{mode:o}: {warnings:?}");
    }
}

#[test]
fn portals_have_groups_and_other_addresses() {
    let config = parse(&["--data", "d"]).resolve().unwrap();
    assert_eq!(config.iscsi.portals, [Portal::new("127.0.0.1:3260".parse().unwrap())]);
    let args =
        &["--data", "d", "--iscsi", "10.0.0.5:3260/2,[::1]:1", "--iscsi", "0.0.0.0:9=san.example:3260"];
    let portals = parse(args).resolve().unwrap().iscsi.portals;
    let expected = |listen: &str, group, advertise: Option<&str>| Portal {
        listen: listen.parse().unwrap(),
        group,
        advertise: advertise.map(str::to_owned),
    };
    assert_eq!(
        portals,
        [
            expected("10.0.0.5:3260", 2, None),
            expected("[::1]:1", 1, None),
            expected("0.0.0.0:9", 1, Some("san.example:3260")),
        ]
    );
    let by_name = parse(&["--data", "d", "--iscsi", "[fe80::7%lo]:3260/3"]).resolve().unwrap();
    assert_eq!(by_name.iscsi.portals, [expected("[fe80::7%1]:3260", 3, None)], "lo is interface 1");
    assert!(parse(&["--data", "d", "--iscsi", "none"]).resolve().unwrap().iscsi.portals.is_empty());
    for bad in [
        "1.2.3.4",
        "[fe80::1%nosuchif]:3260",
        "[2001:db8::1%lo]:3260",
        "unix:/x",
        "1.2.3.4:1/0",
        "1.2.3.4:1/70000",
        "1.2.3.4:1/x",
        "1.2.3.4:1=",
        "none,none",
    ] {
        assert!(refused(&["--data", "d", "--iscsi", bad]).contains("--iscsi"), "{bad}");
    }
    let config = parse(&["--data", "d", "--iscsi-digests", "required"]).resolve().unwrap();
    assert_eq!(config.iscsi.data_digest, DigestPolicy::Required);
}

#[test]
fn nbd_can_be_switched_off_and_small_journals_get_small_segments() {
    let config = parse(&["--data", "d", "--nbd", "none", "--journal-size", "64M"]).resolve().unwrap();
    assert!(config.nbd.listen.is_empty());
    assert_eq!(config.creation.config.segment_size, 8 << 20);
    assert_eq!(default_segment(0), 4 << 20);
    assert_eq!(default_segment(64 << 30), 32 << 20);
    assert!(refused(&["--data", "d", "--low-space", "101"]).contains("100"));
    assert!(refused(&["--data", "d", "--longest-delay", "10001"]).contains("0 to 10000 milliseconds"));
    let delay = |args: &[&str]| parse(args).resolve().unwrap().options.longest_delay;
    assert_eq!(delay(&["--data", "/a"]), Duration::from_secs(1));
    assert_eq!(delay(&["--data", "/a", "--longest-delay", "0"]), Duration::ZERO);
    assert_eq!(delay(&["--data", "/a", "--longest-delay", "250"]), Duration::from_millis(250));
    for size in ["512", "32M"] {
        assert!(refused(&["--data", "d", "--direct-min", size]).contains("0, or 4K to 16M"));
    }
    let direct = |args: &[&str]| parse(args).resolve().unwrap().options.direct_min;
    assert_eq!(direct(&["--data", "/a"]), Some(64 << 10));
    assert_eq!(direct(&["--data", "/a", "--direct-min", "0"]), None);
    assert_eq!(direct(&["--data", "/a", "--direct-min", "128K"]), Some(128 << 10));
    assert!(refused(&["--data", "d", "--direct-start", "101"]).contains("100"));
    let start = |args: &[&str]| parse(args).resolve().unwrap().options.direct_start_percent;
    assert_eq!(start(&["--data", "/a", "--direct-start", "0"]), 0);
    assert!(refused(&["--data", "d", "--keep-distance", "4K"]).contains("0, or 1M to 1T"));
    let keep = |args: &[&str]| parse(args).resolve().unwrap().options.keep_distance;
    assert_eq!(keep(&["--data", "/a"]), Some(64 << 20));
    assert_eq!(keep(&["--data", "/a", "--keep-distance", "64M"]), Some(64 << 20));
    assert_eq!(keep(&["--data", "/a", "--keep-distance", "0"]), None);
}

#[test]
fn receivers_of_notices_come_from_the_command_line_or_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("h.toml");
    let text = "data = '/a'\n[notify]\ncommand = 'mail'\nwebhook = 'http://a/b'\nmin-severity = 'critical'\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let receivers = |args: &[&str]| parse(args).resolve().unwrap().receivers;
    let found = receivers(&["--config", file, "--notify-command", "page"]).unwrap();
    assert_eq!(found.command.as_deref(), Some("page"));
    assert!(found.webhook.is_some());
    assert_eq!((found.min_severity, found.data.as_str()), (Severity::Critical, "/a"));
    assert!(receivers(&["--data", "d"]).is_none());
    let found = receivers(&["--data", "d", "--notify-command", "page"]).unwrap();
    assert!(found.webhook.is_none() && found.min_severity == Severity::Warning);
    let wrong = refused(&["--data", "d", "--notify-webhook", "ftp://user:secret@a/"]);
    assert!(wrong.contains("--notify-webhook") && !wrong.contains("secret"), "{wrong}");
    assert!(refused(&["--data", "d", "--notify-ca", "x"]).contains("--notify-webhook"));
}
