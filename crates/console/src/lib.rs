//! The files of the console, which the server sends to browsers.
//!
//! `web/` has the sources. `npm run build` there writes `dist/`, which is committed. The build
//! script of this crate makes a table of these files, so `cargo build` needs no Node.
#![forbid(unsafe_code)]

/// A file of the console.
#[derive(Debug)]
pub struct Asset {
    /// Path in the URL, such as `/index.html`.
    pub path: &'static str,
    /// Content of the file.
    pub bytes: &'static [u8],
    /// Value of the header `Content-Type`.
    pub content_type: &'static str,
    /// Value of the header `ETag`, with its quotes. It changes with the content.
    pub etag: &'static str,
    /// Whether a browser may keep the file for ever: its path contains a hash of its content.
    pub immutable: bool,
}

/// All files, sorted by path.
static ASSETS: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

const INDEX: &str = "/index.html";

/// Returns the file that answers a path of the console.
///
/// A path without a file is a page of the console, such as `/volumes/db`. It is answered by
/// `/index.html`, whose program shows the page. A missing file of `/assets/` stays missing, because
/// a browser could not use another one in its place. Its answer is `None`, and so is that of every
/// path below `/api/`.
pub fn find(path: &str) -> Option<&'static Asset> {
    if let Some(asset) = exact(path) {
        return Some(asset);
    }
    if path.starts_with("/assets/") || path == "/api" || path.starts_with("/api/") {
        None
    } else {
        exact(INDEX)
    }
}

fn exact(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{ASSETS, INDEX, find};

    #[test]
    fn pages_are_answered_by_the_index() {
        for page in ["/", "/volumes", "/volumes/db.1/snapshots", INDEX] {
            assert_eq!(find(page).unwrap().path, INDEX);
        }
    }

    #[test]
    fn missing_files_and_the_api_are_no_pages() {
        for path in ["/assets/index-old.js", "/api", "/api/v1/volumes"] {
            assert!(find(path).is_none(), "{path}");
        }
    }

    #[test]
    fn the_index_names_files_that_exist() {
        let index = std::str::from_utf8(find("/").unwrap().bytes).unwrap();
        let names: Vec<&str> = index.split('"').filter(|text| text.starts_with("/assets/")).collect();
        assert!(names.len() >= 2, "{index}");
        for name in names {
            assert!(find(name).unwrap().immutable, "{name}");
        }
    }

    #[test]
    fn etags_are_quoted_and_differ() {
        let mut etags: Vec<&str> = ASSETS.iter().map(|asset| asset.etag).collect();
        assert!(etags.iter().all(|etag| etag.len() == 18 && etag.starts_with('"') && etag.ends_with('"')));
        etags.sort_unstable();
        etags.dedup();
        assert_eq!(etags.len(), ASSETS.len());
    }
}
