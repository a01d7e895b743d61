//! The API's description, and what it says about responses: the fields that a request can choose.

use super::error::ApiError;
use super::pages::{MAX_LIMIT, list_of};
use hindcast_api::{API_V1, ErrorKind};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::{Object, ObjectBuilder, OpenApi, RefOr, Required, Response, Type};

/// The fields of responses, by the path of their route.
#[derive(Debug, Clone, Default)]
pub(super) struct Described(BTreeMap<String, BTreeSet<String>>);

/// Returns the path of a route without the prefix of versioned routes.
fn short(path: &str) -> &str {
    path.strip_prefix(API_V1).unwrap_or(path)
}

impl Described {
    /// Reads the fields in a description of OpenAPI.
    pub(super) fn of(document: &Value) -> Described {
        let routes = document["paths"].as_object().into_iter().flatten();
        let of = |(path, item): (&String, &Value)| {
            let schema = item.pointer("/get/responses/200/content/application~1json/schema")?;
            let mut fields = BTreeSet::new();
            collect(document, schema.get("items").unwrap_or(schema), &mut fields);
            (!fields.is_empty()).then(|| (short(path).to_owned(), fields))
        };
        Described(routes.filter_map(of).collect())
    }

    /// Reads the parameter `fields` of a request.
    pub(super) fn check_fields(&self, path: &str, text: &str) -> Result<Vec<String>, ApiError> {
        let invalid = |why: String| ApiError::new(ErrorKind::Invalid, format!("choose fields: {why}"));
        let Some(known) = self.0.get(path) else {
            return Err(invalid("this response has no fields".into()));
        };
        let chosen: Vec<String> = text.split(',').map(|field| field.trim().to_owned()).collect();
        match chosen.iter().find(|field| !known.contains(*field)) {
            None => Ok(chosen),
            Some(field) => {
                let all = known.iter().cloned().collect::<Vec<_>>().join(", ");
                Err(invalid(format!("{field:?} is not a field of this response: {all}")))
            }
        }
    }
}

/// Adds the fields of a schema, with those of the schemas that it is composed of.
fn collect(document: &Value, schema: &Value, fields: &mut BTreeSet<String>) {
    if let Some(path) = schema["$ref"].as_str().and_then(|path| path.strip_prefix('#')) {
        if let Some(schema) = document.pointer(path) {
            collect(document, schema, fields);
        }
        return;
    }
    fields.extend(schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()));
    for composed in ["allOf", "oneOf", "anyOf"] {
        for part in schema[composed].as_array().into_iter().flatten() {
            collect(document, part, fields);
        }
    }
}

/// Adds to a description what every route of GET can do: `fields` and entity tags, and for lists
/// `limit` and `after`.
pub(super) fn completed(mut document: OpenApi) -> OpenApi {
    for (path, item) in &mut document.paths.paths {
        let Some(get) = item.get.as_mut() else { continue };
        let responses = &mut get.responses.responses;
        let Some(RefOr::T(response)) = responses.get_mut("200") else { continue };
        if !response.content.contains_key("application/json") {
            continue;
        }
        let is_list = list_of(short(path)).is_some();
        response.headers.extend(headers(is_list));
        get.parameters.get_or_insert_default().extend(parameters(is_list).into_iter().map(RefOr::T));
        let unchanged = Response::new("The client has this response already.");
        responses.insert("304".into(), RefOr::T(unchanged));
    }
    document
}

fn parameters(is_list: bool) -> Vec<Parameter> {
    let parameter = |place: ParameterIn, name: &str, schema: Object, about: &str| {
        let parameter = ParameterBuilder::new().name(name).parameter_in(place).required(Required::False);
        parameter.schema(Some(schema)).description(Some(about)).build()
    };
    let text = || Object::with_type(Type::String);
    let mut all = vec![
        parameter(
            ParameterIn::Query,
            "fields",
            text(),
            "Names of fields, separated by commas: the response, or each entry of the list, has only these. Default: all.",
        ),
        parameter(
            ParameterIn::Header,
            "If-None-Match",
            text(),
            "Entity tags of earlier responses. If the response would be one of these, it is 304 without a body.",
        ),
    ];
    if is_list {
        let number = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1));
        let number = number.maximum(Some(MAX_LIMIT)).build();
        all.push(parameter(ParameterIn::Query, "limit", number, "Maximum number of entries. Default: all. With `limit` or `after`, the list is sorted by its key: the name, the id, or for snapshots the time of creation."));
        all.push(parameter(
            ParameterIn::Query,
            "after",
            text(),
            "Where the page begins, from the link in the header `Link` of the page before.",
        ));
    }
    all
}

fn headers(is_list: bool) -> Vec<(String, RefOr<Header>)> {
    let header = |name: &str, about: &str| {
        let header = HeaderBuilder::from(Header::default()).description(Some(about)).build();
        (name.to_owned(), RefOr::T(header))
    };
    let mut all = vec![header("ETag", "Entity tag of this response.")];
    if is_list {
        all.push(header("Link", "Link to the next page, with `rel=\"next\"`. Absent: this is the last one."));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::pages::list_of;
    use super::*;

    #[test]
    fn every_list_that_has_pages_has_the_fields_of_its_key() {
        let document: Value = serde_json::from_str(&super::super::routes::document()).unwrap();
        let described = Described::of(&document);
        let lists: Vec<&str> = document["paths"]
            .as_object()
            .unwrap()
            .keys()
            .map(|path| short(path))
            .filter(|path| list_of(path).is_some())
            .collect();
        assert_eq!(lists.len(), 14, "{lists:?}");
        for path in lists {
            for field in list_of(path).unwrap().fields() {
                assert!(described.check_fields(path, field).is_ok(), "{path}: {field}");
            }
            let get = &document["paths"][format!("{API_V1}{path}")]["get"];
            assert_eq!(get["responses"]["200"]["content"]["application/json"]["schema"]["type"], "array");
            let names = get["parameters"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap());
            assert!(
                ["limit", "after", "fields"].iter().all(|name| names.clone().any(|n| n == *name)),
                "{path}"
            );
        }
        assert!(described.check_fields("/status", "version,health").is_ok());
        assert!(described.check_fields("/status", "versoin").is_err());
    }
}
