//! The answer to a request, from its path and the folder alone.

use std::fs;
use std::path::Path;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION};
use hyper::{Method, Response, StatusCode};
use instar_channel::{ChannelName, LIST, List, Release, SIGNATURE};
use instar_values::{Digest, Version};

use crate::folder;

/// Answers a request.
pub(super) fn answer(folder: &Path, method: &Method, path: &str) -> Response<Full<Bytes>> {
    if method != Method::GET && method != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "this server answers GET");
    }
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let Some(channel) = parts.first().and_then(|name| name.parse().ok()) else {
        return absent();
    };
    match parts.get(1..).unwrap_or_default() {
        [] => newest(folder, &channel),
        [file] if *file == LIST || *file == SIGNATURE => served(folder, &channel, &[file]),
        ["approvals", file] => match file.strip_suffix(".sig").map(Digest::from_hex) {
            Some(Ok(_)) => served(folder, &channel, &["approvals", file]),
            _ => absent(),
        },
        [version] => match version.parse() {
            Ok(version) => release(folder, &channel, &version),
            Err(_) => absent(),
        },
        _ => absent(),
    }
}

fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{text}\n")));
    *response.status_mut() = status;
    response
}

fn absent() -> Response<Full<Bytes>> {
    text(StatusCode::NOT_FOUND, "there is no such channel or file")
}

/// The newest release that is for all machines.
fn newest_of(list: &List) -> Option<&Release> {
    let mut releases = list.releases.iter();
    releases.find(|it| it.withdrawn.is_none() && it.only_for.is_empty())
}

fn newest(folder: &Path, channel: &ChannelName) -> Response<Full<Bytes>> {
    let Ok(list) = folder::read(folder, channel) else {
        return absent();
    };
    let Some(release) = newest_of(&list) else {
        return text(
            StatusCode::NOT_FOUND,
            "the channel has no release for all machines",
        );
    };
    // The last part is a tag and the value of a label, where `+` is not allowed.
    let version = release.version.to_string().replace('+', "-");
    let mut response = text(StatusCode::FOUND, &version);
    if let Ok(location) = format!("/{channel}/{version}").parse() {
        response.headers_mut().insert(LOCATION, location);
    }
    fresh(response)
}

fn release(folder: &Path, channel: &ChannelName, version: &Version) -> Response<Full<Bytes>> {
    let Ok(list) = folder::read(folder, channel) else {
        return absent();
    };
    let releases = list.releases.iter().filter(|it| it.version == *version);
    let releases: Vec<&Release> = releases.collect();
    match serde_json::to_vec_pretty(&releases) {
        Ok(json) if !releases.is_empty() => fresh(typed(json, "application/json")),
        _ => absent(),
    }
}

fn served(folder: &Path, channel: &ChannelName, parts: &[&str]) -> Response<Full<Bytes>> {
    let file = parts
        .iter()
        .fold(folder.join(channel.as_str()), |file, part| file.join(part));
    let kind = match parts {
        [LIST] => "application/json",
        _ => "text/plain",
    };
    match fs::read(file) {
        Ok(bytes) => fresh(typed(bytes, kind)),
        Err(_) => absent(),
    }
}

fn typed(bytes: Vec<u8>, kind: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(bytes));
    let kind = hyper::header::HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Caches between must not show an old list.
fn fresh(mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    let value = hyper::header::HeaderValue::from_static("no-cache");
    response.headers_mut().insert(CACHE_CONTROL, value);
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use instar_channel::{Date, change};

    fn release_of(version: &str) -> Release {
        let json = format!(
            r#"{{"version": "{version}", "architecture": "amd64", "image": "r.io/os:{version}", "digest": "{}", "date": "{}"}}"#,
            Digest::of(version.as_bytes()),
            Date::from_seconds(1)
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn paths_have_their_answers() {
        let folder = tempfile::tempdir().unwrap();
        let mut list = List::first("stable".parse().unwrap(), Date::from_seconds(1));
        for version in ["v0.2.0", "v0.3.0", "v0.4.0"] {
            change::add(&mut list, release_of(version)).unwrap();
        }
        list.releases[0].only_for = vec!["canary=yes".parse().unwrap()];
        list.releases[1].withdrawn = Some("bad".into());
        let own = folder.path().join("stable");
        let hex = Digest::of(b"x").hex();
        fs::create_dir_all(own.join("approvals")).unwrap();
        fs::write(own.join(LIST), list.to_bytes().unwrap()).unwrap();
        fs::write(own.join(SIGNATURE), "AAAA").unwrap();
        fs::write(own.join(format!("approvals/{hex}.sig")), "AAAA").unwrap();
        fs::write(folder.path().join("secret"), "x").unwrap();
        let status = |path: &str| answer(folder.path(), &Method::GET, path).status().as_u16();
        for (path, expected) in [
            ("/stable/releases-v1.json", 200),
            ("/stable/releases-v1.json.sig", 200),
            ("/stable/v0.2.0", 200),
            (&format!("/stable/approvals/{hex}.sig"), 200),
            ("/stable/v0.9.0", 404),
            ("/stable/approvals/../../secret", 404),
            ("/stable/approvals/x.sig", 404),
            ("/secret", 404),
            ("/../secret", 404),
            ("/beta", 404),
            ("/", 404),
        ] {
            assert_eq!(status(path), expected, "{path}");
        }
        let newest = answer(folder.path(), &Method::GET, "/stable");
        assert_eq!(newest.status(), StatusCode::FOUND);
        assert_eq!(newest.headers()[LOCATION], "/stable/v0.2.0");
        let posted = answer(folder.path(), &Method::POST, "/stable");
        assert_eq!(posted.status(), StatusCode::METHOD_NOT_ALLOWED);
    }
}
