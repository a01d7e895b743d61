//! Tests with clients of other projects: libnbd's tools, qemu, fio. They have to be installed.
#![allow(clippy::unwrap_used)] // the lint knows test functions only, not what they use

mod common;

use common::mem::MemDevice;
use common::{Fixture, start};
use hindcast_engine::device::DeviceInfo;
use hindcast_target::nbd::{Command as Cmd, Listen, TlsConfig, TlsRequired};
use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Output};
use std::sync::atomic::Ordering::Relaxed;
use uuid::Uuid;

const SIZE: u64 = 64 << 20;

/// Runs a client; its absence is a failure, so that a test which did not run can't pass.
fn run(program: &str, args: &[&str]) -> Output {
    match Command::new(program).args(args).env_remove("PYTHONPATH").output() {
        Ok(output) => output,
        Err(e) => panic!("{program} ({e}): install libnbd-bin, python3-libnbd, qemu-utils, and fio"),
    }
}

/// Runs a client that must succeed; its standard output.
fn ok(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{program}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Runs nbdsh with Debian's own Python, for which libnbd's module is packaged; the one in the path
/// may be another.
fn nbdsh(args: &[&str]) {
    ok("/usr/bin/python3", &[&["-m", "nbd"], args].concat());
}

fn uri(fixture: &Fixture) -> String {
    format!("nbd+unix:///vol?socket={}", fixture.path.display())
}

fn fixture() -> Fixture {
    start(MemDevice::new(SIZE), |_| {})
}

/// Bytes with runs of zeros in them, 16 MiB.
fn image() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut image = vec![0u8; 16 << 20];
    for (n, block) in image.chunks_mut(64 << 10).enumerate() {
        if n % 3 == 0 {
            continue;
        }
        for word in block.chunks_mut(8) {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            word.copy_from_slice(&state.to_le_bytes());
        }
    }
    image
}

#[test]
fn nbdinfo_sees_what_is_offered() {
    let fixture = fixture();
    let info = ok("nbdinfo", &[&uri(&fixture)]);
    for line in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export=\"vol\"",
        "export-size: 67108864 (64M)",
        "base:allocation",
        "is_read_only: false",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_minimum: 512",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(info.contains(line), "{line} is not in {info}");
    }
    let list = ok("nbdinfo", &["--list", &uri(&fixture)]);
    assert!(
        list.contains("export=\"vol\"") && list.contains("description: 67108864 bytes of memory"),
        "{list}"
    );
    let map = ok("nbdinfo", &["--map", &uri(&fixture)]);
    assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", "67108864", "3", "hole,zero"]);
    assert!(!run("nbdinfo", &[&uri(&fixture).replace("/vol", "/nothing")]).status.success());
}

#[test]
fn nbdcopy_brings_an_image_in_and_out() {
    let fixture = fixture();
    let file = |name: &str| fixture.dir.path().join(name).display().to_string();
    fs::write(file("in"), image()).unwrap();
    for (n, args) in [&["--connections=1"][..], &["--connections=4", "--flush"], &["--synchronous"]]
        .into_iter()
        .enumerate()
    {
        let out = file(&format!("out{n}"));
        ok("nbdcopy", &[args, &[&file("in"), &uri(&fixture)]].concat());
        ok("nbdcopy", &[args, &[&uri(&fixture), &out]].concat());
        let out = fs::read(out).unwrap();
        assert_eq!(out.len() as u64, SIZE);
        assert!(out[..16 << 20] == image() && out[16 << 20..].iter().all(|b| *b == 0));
    }
    assert!(fixture.device.calls.flushes.load(Relaxed) > 0);
    assert_eq!(fixture.server.stats().traffic.errors, 0);
}

#[test]
fn qemu_io_reads_writes_discards_and_verifies() {
    let fixture = fixture();
    let script = [
        "write -P 5 0 1M",
        "write -f -P 6 512 4k",
        "read -P 5 0 512",
        "read -P 6 512 4k",
        "aio_write -P 7 2M 8M",
        "aio_flush",
        "read -P 7 2M 8M",
        "flush",
        "write -z 0 64k",
        "read -P 0 0 64k",
        "write -z -u 64k 64k",
        "read -P 0 64k 64k",
        "discard 128k 512k",
        "read -P 5 640k 256k",
        "read -P 0 32M 1M",
    ];
    let mut args = vec!["-f", "raw"];
    script.iter().for_each(|command| args.extend(["-c", *command]));
    let uri = uri(&fixture);
    args.push(&uri);
    let out = ok("qemu-io", &args);
    assert!(!out.contains("failed"), "{out}");
    let map = ok("qemu-img", &["map", "--output=json", &uri]);
    assert!(map.contains("\"zero\": true, \"data\": false"), "{map}");
    assert_eq!(fixture.server.stats().traffic.errors, 0);
}

/// Every command, and every error a client can bring about, as libnbd sees them.
#[test]
fn nbdsh_sees_every_command_and_error() {
    let fixture = fixture();
    let script = r#"
import errno
def fails(code, call):
    try:
        call()
    except nbd.Error as e:
        assert e.errnum == code, (e.errnum, code, e.string)
        return
    assert False, "no error where %d was expected" % code

size = h.get_size()
assert size == 67108864
assert h.can_meta_context("base:allocation")
assert h.get_structured_replies_negotiated()
h.pwrite(b"x" * 4096, 8192)
h.pwrite(b"y" * 512, 0, nbd.CMD_FLAG_FUA)
assert h.pread(4096, 8192) == b"x" * 4096
h.flush()
h.zero(4096, 8192, nbd.CMD_FLAG_NO_HOLE)
h.zero(4096, 8192, nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(4096, 8192) == bytearray(4096)
h.trim(65536, 65536)
h.cache(65536, 0)
extents = []
h.block_status(size, 0, lambda context, offset, entries, err: extents.append((context, offset, entries)) or 0)
assert extents == [("base:allocation", 0, [65536, 0, size - 65536, 3])], extents
one = []
h.block_status(size, 0, lambda context, offset, entries, err: one.append(entries) or 0, nbd.CMD_FLAG_REQ_ONE)
assert one == [[65536, 0]], one
chunks = []
h.pread_structured(196608, 0, lambda data, offset, kind, err: chunks.append((offset, len(data), kind)) or 0)
assert sorted(chunks) == [(0, 65536, nbd.READ_DATA), (65536, 131072, nbd.READ_HOLE)], chunks

whole = []
h.pread_structured(196608, 0, lambda data, offset, kind, err: whole.append((offset, len(data))) or 0, nbd.CMD_FLAG_DF)
assert whole == [(0, 196608)], whole

h.set_strict_mode(0)
fails(errno.EINVAL, lambda: h.pread(1024, size - 512))
fails(errno.EINVAL, lambda: h.pread(512, 1))
fails(errno.EINVAL, lambda: h.pread(100, 0))
fails(errno.ENOSPC, lambda: h.pwrite(b"z" * 1024, size - 512))
fails(errno.EINVAL, lambda: h.pwrite(b"z" * 512, 1))
fails(errno.EINVAL, lambda: h.pwrite(b"z" * 512, 0, nbd.CMD_FLAG_DF))
fails(errno.ENOSPC, lambda: h.zero(1024, size - 512))
fails(errno.EINVAL, lambda: h.trim(1024, size - 512))
fails(errno.EINVAL, lambda: h.cache(1024, size - 512))
fails(errno.EINVAL, lambda: h.trim(0, 0))
fails(errno.ENOTSUP, lambda: h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE))
fails(errno.EINVAL, lambda: h.block_status(1024, size - 512, lambda *a: 0))
assert h.pread(512, 0) == b"y" * 512

many = [(i, h.aio_pwrite(nbd.Buffer.from_bytearray(bytes([i]) * 4096), 1048576 + i * 4096)) for i in range(200)]
for i, cookie in many:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
for i in range(200):
    assert h.pread(4096, 1048576 + i * 4096) == bytes([i]) * 4096
h.shutdown()
"#;
    nbdsh(&["--base-allocation", "-u", &uri(&fixture), "-c", script]);
    let traffic = fixture.server.stats().traffic;
    assert!(Cmd::ALL.iter().all(|c| traffic.requests_of(*c) > 0), "{traffic:?}");
}

#[test]
fn nbdsh_negotiates_option_by_option() {
    let fixture = fixture();
    let script = r#"
names = []
assert h.opt_list(lambda name, description: names.append((name, description)) or 0) == 1
assert names == [("vol", "67108864 bytes of memory")], names
h.set_export_name("nothing")
try:
    h.opt_info()
    assert False
except nbd.Error:
    pass
h.set_export_name("vol")
h.add_meta_context("base:")
found = []
assert h.opt_list_meta_context(lambda name: found.append(name) or 0) == 1
assert found == ["base:allocation"], found
h.clear_meta_contexts()
h.opt_info()
assert h.get_size() == 67108864 and h.get_canonical_export_name() == "vol"
h.opt_go()
assert h.aio_is_ready()
h.pwrite(b"1" * 512, 0)
"#;
    let connect =
        format!("h.set_opt_mode(True)\nh.set_full_info(True)\nh.connect_unix({:?})\n", fixture.path);
    nbdsh(&["-c", &(connect + script)]);
}

#[test]
fn a_read_only_export_is_seen_as_one() {
    let info = DeviceInfo {
        size: SIZE,
        block_size: 4096,
        preferred_size: 65536,
        read_only: true,
        uuid: Uuid::nil(),
    };
    let fixture = start(MemDevice::with_info(info), |_| {});
    let info = ok("nbdinfo", &[&uri(&fixture)]);
    for line in ["is_read_only: true", "can_trim: false", "can_zero: false", "block_size_minimum: 4096"] {
        assert!(info.contains(line), "{line} is not in {info}");
    }
    let script = r#"
import errno
h.set_strict_mode(0)
for call in [lambda: h.pwrite(b"x" * 4096, 0), lambda: h.zero(4096, 0), lambda: h.trim(4096, 0)]:
    try:
        call()
        assert False
    except nbd.Error as e:
        assert e.errnum == errno.EPERM, e
assert h.pread(4096, 0) == bytearray(4096)
"#;
    nbdsh(&["-u", &uri(&fixture), "-c", script]);
    assert!(!run("qemu-io", &["-f", "raw", "-c", "write 0 4k", &uri(&fixture)]).status.success());
}

#[test]
fn fio_verifies_what_it_wrote() {
    let fixture = fixture();
    let uri = format!("--uri={}", uri(&fixture));
    let common =
        ["--name=verify", "--ioengine=nbd", &uri, "--size=16M", "--verify=crc32c", "--verify_fatal=1"];
    for more in [
        &["--rw=randwrite", "--bs=4k", "--iodepth=32"][..],
        &["--rw=randrw", "--bsrange=512-64k", "--iodepth=16", "--fsync=8"],
        &["--rw=write", "--bs=1M", "--iodepth=4"],
    ] {
        ok("fio", &[&common[..], more].concat());
    }
    // The same with a cold cache, through the workers.
    fixture.device.cold.store(true, Relaxed);
    ok("fio", &[&common[..], &["--rw=randwrite", "--bs=4k", "--iodepth=32"]].concat());
    assert_eq!(fixture.server.stats().traffic.errors, 0);
}

#[test]
fn tls_works_with_gnutls() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_cert = ca.self_signed(&key).unwrap();
    let issuer = rcgen::Issuer::new(ca, key);
    let server_key = rcgen::KeyPair::generate().unwrap();
    let server = rcgen::CertificateParams::new(["localhost".to_owned()])
        .unwrap()
        .signed_by(&server_key, &issuer)
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    fs::write(file("ca-cert.pem"), ca_cert.pem()).unwrap();
    fs::write(file("cert.pem"), server.pem()).unwrap();
    fs::write(file("key.pem"), server_key.serialize_pem()).unwrap();
    let fixture = start(MemDevice::new(SIZE), |c| {
        c.listen.push(Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0))));
        c.tls = Some(TlsConfig { cert: file("cert.pem"), key: file("key.pem"), client_ca: None });
        c.tls_required = TlsRequired::Tcp;
    });
    let port = fixture.server.addresses().into_iter().find_map(|l| match l {
        Listen::Tcp(address) => Some(address.port()),
        Listen::Unix(_) => None,
    });
    let (port, certs) = (port.unwrap(), dir.path().display());
    let uri = format!("nbds://localhost:{port}/vol?tls-certificates={certs}");
    let info = ok("nbdinfo", &[&uri]);
    assert!(info.contains("newstyle-fixed with TLS"), "{info}");
    fs::write(file("in"), image()).unwrap();
    let (input, output) = (file("in").display().to_string(), file("out").display().to_string());
    ok("nbdcopy", &[&input, &uri]);
    ok("nbdcopy", &[&uri, &output]);
    assert!(fs::read(output).unwrap()[..16 << 20] == image());
    let plain = run("nbdinfo", &[&format!("nbd://localhost:{port}/vol")]);
    assert!(!plain.status.success(), "TLS is required");
}
