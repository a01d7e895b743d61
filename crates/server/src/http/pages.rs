//! Pages of lists: which lists have them, and how a list is cut.
//!
//! A page begins after the key of the last entry of the page before. Entries that are added or
//! removed between two requests neither repeat other entries nor hide them.

use super::error::{ApiError, Json};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use hindcast_api::ErrorKind;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use std::convert::Infallible;

/// Maximum number of entries in a page.
pub(super) const MAX_LIMIT: usize = 10_000;

/// A part of the key of an entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeyPart {
    Number(u64),
    Text(String),
    Time(Timestamp),
}

/// The key of an entry. The entries of a page are sorted by it. Two entries of a list differ in it.
pub(super) type EntryKey = Vec<KeyPart>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    Number,
    Text,
    Time,
}

/// A list that has pages.
#[derive(Debug)]
pub(super) struct PagedList {
    /// Path of its route, without the prefix of versioned routes.
    pub(super) path: &'static str,
    /// Fields of an entry that make its key.
    key: &'static [(&'static str, KeyKind)],
}

const NAME: &[(&str, KeyKind)] = &[("name", KeyKind::Text)];
const ID: &[(&str, KeyKind)] = &[("id", KeyKind::Text)];

const fn list(path: &'static str, key: &'static [(&'static str, KeyKind)]) -> PagedList {
    PagedList { path, key }
}

/// All lists that have pages. `/audit`, `/events`, `/volumes/{volume}/changes` and
/// `/views/{id}/files` have parameters of their own for this.
static LISTS: [PagedList; 14] = [
    list("/access/sessions", ID),
    list("/access/tokens", NAME),
    list("/access/users", NAME),
    list("/clients", ID),
    list("/groups", NAME),
    list("/pool/pvs", &[("id", KeyKind::Number)]),
    list("/schedules", NAME),
    list("/snapshots", &[("volume", KeyKind::Text), ("created", KeyKind::Time), ("uuid", KeyKind::Text)]),
    list("/targets", NAME),
    // A task that began again after it had ended is listed twice.
    list("/tasks", &[("id", KeyKind::Text), ("begun", KeyKind::Time)]),
    list("/trash", &[("deleted", KeyKind::Time), ("uuid", KeyKind::Text)]),
    list("/views", ID),
    list("/volumes", NAME),
    list("/volumes/{volume}/snapshots", &[("created", KeyKind::Time), ("uuid", KeyKind::Text)]),
];

/// Returns the list of a route, if it has pages.
pub(super) fn list_of(path: &str) -> Option<&'static PagedList> {
    LISTS.iter().find(|list| list.path == path)
}

fn invalid(why: String) -> ApiError {
    ApiError::new(ErrorKind::Invalid, why)
}

impl PagedList {
    /// Returns the fields that make the key.
    #[cfg(test)]
    pub(super) fn fields(&self) -> impl Iterator<Item = &'static str> {
        self.key.iter().map(|(field, _)| *field)
    }

    /// Returns the key of an entry. `None`: the entry is not one of this list.
    fn key(&self, entry: &Value) -> Option<EntryKey> {
        let part = |(field, kind): &(&str, KeyKind)| match (kind, entry.get(field)?) {
            (KeyKind::Number, value) => value.as_u64().map(KeyPart::Number),
            (KeyKind::Text, Value::String(text)) => Some(KeyPart::Text(text.clone())),
            (KeyKind::Time, Value::String(text)) => text.parse().ok().map(KeyPart::Time),
            _ => None,
        };
        self.key.iter().map(part).collect()
    }

    /// Reads the key in `after`, as [`written`] wrote it.
    fn read(&self, after: &str) -> Option<EntryKey> {
        let texts: Vec<&str> = after.split('/').collect();
        if texts.len() != self.key.len() {
            return None;
        }
        let part = |((_, kind), text): (&(&str, KeyKind), &str)| match kind {
            KeyKind::Number => text.parse().ok().map(KeyPart::Number),
            KeyKind::Text => Some(KeyPart::Text(text.replace("%2F", "/").replace("%25", "%"))),
            KeyKind::Time => text.parse().ok().map(KeyPart::Time),
        };
        self.key.iter().zip(texts).map(part).collect()
    }
}

/// Returns a key as one text.
fn written(key: &EntryKey) -> String {
    let part = |part: &KeyPart| match part {
        KeyPart::Number(number) => number.to_string(),
        KeyPart::Text(text) => text.replace('%', "%25").replace('/', "%2F"),
        KeyPart::Time(time) => time.to_string(),
    };
    key.iter().map(part).collect::<Vec<_>>().join("/")
}

/// The part of a list that a request asks for. Handlers of long lists take it as an argument, and
/// make only the entries of the page. For all other lists the page is cut out of the response.
#[derive(Debug, Clone, Default)]
pub(super) struct Page {
    /// `None`: the request asks for the whole list.
    asked: Option<AskedPage>,
}

#[derive(Debug, Clone)]
struct AskedPage {
    list: &'static PagedList,
    /// `None`: all entries.
    limit: Option<usize>,
    after: Option<EntryKey>,
}

impl Page {
    /// Reads the parameters of a request for `list`.
    pub(super) fn new(
        list: &'static PagedList,
        limit: Option<&str>,
        after: Option<&str>,
    ) -> Result<Page, ApiError> {
        if limit.is_none() && after.is_none() {
            return Ok(Page::default());
        }
        let number = |text: &str| text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
        let wrong =
            |text: &str| invalid(format!("list: limit={text:?} must be a number from 1 to {MAX_LIMIT}"));
        let limit = limit.map(|text| number(text).ok_or_else(|| wrong(text))).transpose()?;
        let wrong = |text: &str| {
            invalid(format!(
                "list: after={text:?} is not from the header Link of an earlier page of this list"
            ))
        };
        let after = after.map(|text| list.read(text).ok_or_else(|| wrong(text))).transpose()?;
        Ok(Page { asked: Some(AskedPage { list, limit, after }) })
    }

    pub(super) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Cuts the page out of a whole list, and returns it with the parameter `after` of the next
    /// page, if there is one.
    pub(super) fn cut<T>(&self, mut all: Vec<T>, key: impl Fn(&T) -> EntryKey) -> (Vec<T>, NextPage) {
        let Some(AskedPage { limit, after, .. }) = &self.asked else { return (all, NextPage(None)) };
        all.retain(|entry| after.as_ref().is_none_or(|after| key(entry) > *after));
        all.sort_by_cached_key(&key);
        let limit = limit.unwrap_or(usize::MAX);
        let is_last = all.len() <= limit;
        all.truncate(limit);
        let next = all.last().filter(|_| !is_last).map(|last| written(&key(last)));
        (all, NextPage(next))
    }

    /// Cuts the page out of a whole list in JSON.
    pub(super) fn cut_json(&self, all: Vec<Value>) -> (Vec<Value>, NextPage) {
        let key = |entry: &Value| self.asked.as_ref().and_then(|asked| asked.list.key(entry));
        self.cut(all, |entry| key(entry).unwrap_or_default())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Page {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Page, Infallible> {
        Ok(parts.extensions.get::<Page>().cloned().unwrap_or_default())
    }
}

/// The parameter `after` of the next page. `None`: there is none. A response that is a page already
/// has it as an extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NextPage(pub(super) Option<String>);

/// A page of a list, as a response.
pub(super) struct Entries<T>(pub(super) Vec<T>, pub(super) NextPage);

impl<T: Serialize + Send + 'static> IntoResponse for Entries<T> {
    fn into_response(self) -> Response {
        let mut response = Json(self.0).into_response();
        response.extensions_mut().insert(self.1);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(values: &[Value]) -> Vec<&str> {
        values.iter().map(|value| value["name"].as_str().unwrap()).collect()
    }

    #[test]
    fn pages_are_the_whole_list() {
        let list = list_of("/volumes").unwrap();
        let all: Vec<Value> = ["c", "a", "e/f", "d", "b%2F"].map(|name| json!({ "name": name })).to_vec();
        let (mut found, mut after) = (Vec::new(), None::<String>);
        for _ in 0..3 {
            let page = Page::new(list, Some("2"), after.as_deref()).unwrap();
            let (part, NextPage(next)) = page.cut_json(all.clone());
            found.extend(names(&part).into_iter().map(str::to_owned).collect::<Vec<_>>());
            after = next;
        }
        assert_eq!((found.join(" "), after), ("a b%2F c d e/f".into(), None));
        let (whole, next) = Page::default().cut_json(all.clone());
        assert_eq!((whole, next), (all.clone(), NextPage(None)), "as it is without parameters");
        // The entry before the page is gone.
        let gone = Page::new(list, Some("9"), Some("bb")).unwrap();
        assert_eq!(names(&gone.cut_json(all).0), ["c", "d", "e/f"]);
    }

    #[test]
    fn times_and_numbers_are_no_texts() {
        let list = list_of("/volumes/{volume}/snapshots").unwrap();
        let of = |times: &[&str]| -> Vec<Value> {
            times.iter().map(|time| json!({ "name": time, "created": time, "uuid": "x/y" })).collect()
        };
        let all = of(&["2026-01-01T00:00:01.5Z", "2026-01-01T00:00:01Z", "2026-01-01T00:00:10Z"]);
        let page = Page::new(list, Some("1"), None).unwrap();
        let (first, NextPage(next)) = page.cut_json(all.clone());
        assert_eq!(names(&first), ["2026-01-01T00:00:01Z"]);
        let rest = Page::new(list, None, next.as_deref()).unwrap();
        assert_eq!(names(&rest.cut_json(all).0), ["2026-01-01T00:00:01.5Z", "2026-01-01T00:00:10Z"]);
        let pvs: Vec<Value> = [10, 9, 1].map(|id| json!({ "id": id, "name": "" })).to_vec();
        let page = Page::new(list_of("/pool/pvs").unwrap(), Some("2"), Some("1")).unwrap();
        assert_eq!(page.cut_json(pvs).0[0]["id"], 9);
    }

    #[test]
    fn wrong_parameters_are_refused() {
        let list = list_of("/snapshots").unwrap();
        for limit in ["0", "-1", "x", "", "10001"] {
            assert!(Page::new(list, Some(limit), None).is_err(), "{limit}");
        }
        for after in ["", "db", "db/yesterday/x", "db/2026-01-01T00:00:00Z/x/y"] {
            assert!(Page::new(list, None, Some(after)).is_err(), "{after}");
        }
        assert!(Page::new(list, None, Some("db/2026-01-01T00:00:00Z/x")).is_ok());
    }
}
