//! Serves memory over NBD, without a pool. Use it to try clients and to measure the cost of the
//! protocol alone.
//!
//! `memserve SIZE_MIB (unix:PATH | ADDRESS:PORT)...`, optionally with `tls=DIR`, a directory that
//! holds `cert.pem` and `key.pem`.

#[path = "../tests/common/mem.rs"]
mod mem;

use hindcast_target::nbd::{Listen, NbdConfig, NbdServer, TlsConfig};
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let size: u64 = args.next().ok_or("a size in MiB comes first")?.parse()?;
    let mut config = NbdConfig::default();
    for arg in args {
        if let Some(dir) = arg.strip_prefix("tls=") {
            let dir = PathBuf::from(dir);
            config.tls =
                Some(TlsConfig { cert: dir.join("cert.pem"), key: dir.join("key.pem"), client_ca: None });
        } else if let Some(path) = arg.strip_prefix("unix:") {
            config.listen.push(Listen::Unix(path.into()));
        } else {
            config.listen.push(Listen::Tcp(arg.parse()?));
        }
    }
    let exports = mem::MemExports::one("mem", Arc::new(mem::MemDevice::new(size << 20)));
    let server = NbdServer::start(config, exports)?;
    // Serves until standard input ends.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.shutdown(Duration::from_secs(5));
    Ok(())
}
