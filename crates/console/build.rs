//! Makes a table of the files in `dist/`: paths, content types and ETags, and the bytes by
//! `include_bytes!`. The bundle is committed, so a build needs no Node.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let dist = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("dist");
    println!("cargo::rerun-if-changed=dist");
    println!("cargo::rerun-if-changed=build.rs");
    let mut files = Vec::new();
    collect(&dist, &dist, &mut files)?;
    files.sort();
    let mut table = String::from("&[\n");
    for path in files {
        let file = dist.join(&path);
        let etag = format!("\"{:016x}\"", fingerprint(&fs::read(&file)?));
        // Vite puts a hash of the content into the names of these files.
        let immutable = path.starts_with("assets/");
        writeln!(
            table,
            "Asset {{ path: {:?}, bytes: include_bytes!({:?}), content_type: {:?}, etag: {etag:?}, immutable: {immutable} }},",
            format!("/{path}"),
            file.display().to_string(),
            content_type(&path),
        )?;
    }
    table.push(']');
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("assets.rs"), table)?;
    Ok(())
}

/// Adds the paths of all files below `directory`, relative to `dist`, with slashes.
fn collect(dist: &Path, directory: &Path, files: &mut Vec<String>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(dist, &path, files)?;
        } else {
            files.push(path.strip_prefix(dist)?.to_string_lossy().replace('\\', "/"));
        }
    }
    Ok(())
}

/// FNV-1a of the content. An ETag tells versions of one file apart. Nothing relies on it for
/// safety.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}
