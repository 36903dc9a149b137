//! Reads the lists of channels, and shows the newest release of each.
//!
//! A list is asked for at its interval, by the one process that has the lease; nodes are not asked. The status is written when it changes.

use std::time::Duration;

use http::{HeaderMap, Uri};
use instar_channel::{ChannelName, Date, LARGEST, LIST, List, Position, Release, SIGNATURE};
use instar_http_client::{Client, Proxies, Request, Trust};
use instar_rollout::Seconds;
use instar_values::PublicKey;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::api::{Channel, ChannelStatus};
use crate::cluster::Cluster;
use crate::failure::Error;

/// How often a list is read.
const INTERVAL: Duration = Duration::from_secs(600);
/// The shortest interval.
const SHORTEST: Duration = Duration::from_secs(5);
/// Timeout of one look.
const LOOK: Duration = Duration::from_secs(60);
/// Limit on a signature, in bytes.
const LARGEST_SIGNATURE: usize = 16 << 10;
/// Redirections that are followed.
const REDIRECTIONS: usize = 3;

/// Keeps the status of a channel right until it is deleted.
pub(crate) async fn keep(cluster: Cluster, name: String, wake: std::rc::Rc<Notify>) {
    while let Some(channel) = cluster.channel(&name) {
        let known = channel.status.clone().unwrap_or_default();
        let looked = match timeout(LOOK, look(&channel, &known)).await {
            Ok(Ok(seen)) => seen,
            Ok(Err(why)) => failed(&known, why),
            Err(_) => failed(&known, format!("no answer within {} s", LOOK.as_secs())),
        };
        if looked != known
            && let Err(error) = show(&cluster, &name, &looked).await
        {
            eprintln!("channel {name}: {error}");
        }
        let changed = |now: &Channel| now.spec != channel.spec;
        loop {
            let is_due = tokio::select! {
                () = sleep(interval(&channel)) => true,
                () = wake.notified() => false,
            };
            // Its own status changes as well.
            if is_due || cluster.channel(&name).is_none_or(|now| changed(&now)) {
                break;
            }
        }
    }
}

/// What was known stays; it is told why nothing newer is.
fn failed(known: &ChannelStatus, why: String) -> ChannelStatus {
    ChannelStatus {
        message: why,
        ..known.clone()
    }
}

fn interval(channel: &Channel) -> Duration {
    let text = channel.spec.interval.as_deref();
    let seconds = text.and_then(|text| text.parse::<Seconds>().ok());
    seconds.map_or(INTERVAL, |it| Duration::from_secs(it.0).max(SHORTEST))
}

async fn look(channel: &Channel, known: &ChannelStatus) -> Result<ChannelStatus, String> {
    let spec = &channel.spec;
    let name = spec.channel.clone().unwrap_or_else(|| channel.name_any());
    let name: ChannelName = name.parse().map_err(|error| format!("channel: {error}"))?;
    let key: PublicKey = spec
        .public_key
        .parse()
        .map_err(|error| format!("publicKey: {error}"))?;
    let base = format!("{}/{name}", spec.url.trim_end_matches('/'));
    let client = client(spec.ca.as_deref());
    let bytes = document(&client, &format!("{base}/{LIST}"), LARGEST).await?;
    let signature = format!("{base}/{SIGNATURE}");
    let signature = document(&client, &signature, LARGEST_SIGNATURE).await?;
    let list = instar_channel::open(&name, &key, &bytes, &signature);
    let list = list.map_err(|error| error.to_string())?;
    let position = Position::after(position(known).as_ref(), &list, &bytes);
    let position = position.map_err(|error| error.to_string())?;
    let now = Date::from_seconds(instar_rollout_driver::now().0);
    Ok(status(&list, &position, &spec.architecture, now))
}

/// The newest list that was seen, as the status has it.
fn position(known: &ChannelStatus) -> Option<Position> {
    Some(Position {
        serial: known.serial?,
        list: known.list.as_ref()?.parse().ok()?,
    })
}

fn status(list: &List, position: &Position, architecture: &str, now: Date) -> ChannelStatus {
    let expired = list.expires.filter(|expires| *expires < now);
    let newest = match expired {
        Some(_) => None,
        None => newest(list, architecture),
    };
    ChannelStatus {
        version: newest.map(|release| release.version.to_string()),
        image: newest.map(|release| release.pinned_image().to_string()),
        date: newest.map(|release| release.date.to_string()),
        serial: Some(position.serial),
        list: Some(position.list.to_string()),
        message: match (newest, expired) {
            (Some(_), _) => String::new(),
            (None, Some(expired)) => format!("the list has expired, on {expired}"),
            (None, None) => format!("the list has no release for {architecture}"),
        },
    }
}

/// The newest release for all machines of this architecture that was not withdrawn.
fn newest<'a>(list: &'a List, architecture: &str) -> Option<&'a Release> {
    list.releases.iter().find(|release| {
        let is_for_all = release.only_for.is_empty() && release.architecture == architecture;
        is_for_all && release.withdrawn.is_none()
    })
}

/// A client that believes this authority, and goes through the proxies of the environment.
fn client(authority: Option<&str>) -> Client {
    let variable = |name: &str| std::env::var(name).ok();
    let values: Vec<(String, String)> = ["http_proxy", "https_proxy", "no_proxy"]
        .iter()
        .flat_map(|name| [(*name).to_owned(), name.to_uppercase()])
        .filter_map(|name| variable(&name).map(|value| (name, value)))
        .collect();
    let proxies = Proxies::from_environment(|name| {
        let found = values.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    });
    let trust = Trust {
        roots: authority.map(str::to_owned).into_iter().collect(),
        ..Trust::default()
    };
    Client::new(trust, &proxies)
}

async fn document(client: &Client, url: &str, limit: usize) -> Result<Vec<u8>, String> {
    let uri: Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
    let headers = HeaderMap::new();
    let request = Request {
        redirections: REDIRECTIONS,
        ..Request::get(&uri, &headers)
    };
    let failed = |error: instar_http_client::HttpError| format!("{url}: {error}");
    let mut answer = client.send(request).await.map_err(failed)?;
    if !answer.status.is_success() {
        return Err(format!("{url}: the server answered {}", answer.status));
    }
    answer.document(limit).await.map_err(failed)
}

async fn show(cluster: &Cluster, name: &str, status: &ChannelStatus) -> Result<(), Error> {
    let api: Api<Channel> = Api::all(cluster.client.clone());
    let status = json!({"status": {
        "version": status.version, "image": status.image, "date": status.date, "serial": status.serial,
        "list": status.list, "message": status.message,
    }});
    let patched = api
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await;
    patched
        .map_err(Error::calling("its status cannot be written"))
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn release(version: &str, more: Value) -> Value {
        let mut release = json!({
            "version": version, "architecture": "amd64", "image": "registry.example/i:v1",
            "digest": format!("sha256:{}", "a".repeat(64)), "date": "2026-01-01T00:00:00Z",
        });
        for (key, value) in more.as_object().unwrap() {
            release[key] = value.clone();
        }
        release
    }

    fn list(more: Value, releases: &[Value]) -> List {
        let mut list = json!({
            "format": instar_channel::FORMAT, "channel": "stable", "serial": 7, "date": "2026-01-02T00:00:00Z", "releases": releases,
        });
        for (key, value) in more.as_object().unwrap() {
            list[key] = value.clone();
        }
        serde_json::from_value(list).unwrap()
    }

    #[test]
    fn the_newest_release_for_all_is_shown_while_the_list_is_good() {
        let withdrawn = release("v0.4.0", json!({"withdrawn": "it burns"}));
        let canary = release("v0.3.0", json!({"onlyFor": ["canary=yes"]}));
        let other = release("v0.2.1", json!({"architecture": "arm64"}));
        let releases = [withdrawn, canary, other, release("v0.2.0", json!({}))];
        let good = list(json!({}), &releases);
        let late = list(json!({"expires": "2026-01-03T00:00:00Z"}), &releases);
        let now: Date = "2026-02-01T00:00:00Z".parse().unwrap();
        for (list, architecture, version, message) in [
            (&good, "amd64", Some("v0.2.0"), ""),
            (&good, "arm64", Some("v0.2.1"), ""),
            (&good, "riscv64", None, "no release for riscv64"),
            (&late, "amd64", None, "has expired, on 2026-01-03"),
        ] {
            let position = Position::after(None, list, b"").unwrap();
            let shown = status(list, &position, architecture, now);
            assert_eq!(shown.version.as_deref(), version, "{architecture}");
            assert!(shown.message.contains(message), "{}", shown.message);
            assert_eq!(shown.image.is_some(), version.is_some());
        }
    }
}
