//! Reads the lists of channels, and shows the newest release of each.
//!
//! A list is asked for at its interval, by the one process that has the lease; nodes are not asked. The status is written when it changes.

use std::fmt;
use std::time::Duration;

use http::{HeaderMap, Uri};
use instar_channel::{ChannelName, Date, LARGEST, LIST, List, Position, Release, SIGNATURE};
use instar_http_client::{Client, Proxies, Request, Trust};
use instar_rollout::Seconds;
use instar_values::PublicKey;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use crate::api::{Channel, ChannelRelease, ChannelStatus, expired_text};
use crate::cluster::Cluster;
use crate::failure::Error;
use crate::shown::{stamped, told};

/// How often a list is read.
const INTERVAL: Duration = Duration::from_secs(600);
/// The shortest and the longest interval.
const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(365 * 86_400);
/// Timeout of one look.
const LOOK: Duration = Duration::from_secs(60);
/// Limit on a signature, in bytes.
const LARGEST_SIGNATURE: usize = 16 << 10;
/// Redirections that are followed.
const REDIRECTIONS: usize = 3;

/// Keeps the status of a channel right until it is deleted. Another one of its name, with another uid, has a reader of its own.
pub(crate) async fn keep(
    cluster: Cluster,
    (name, uid): (String, Option<String>),
    wake: std::rc::Rc<Notify>,
) {
    let own = || cluster.channel(&name).filter(|it| it.uid() == uid);
    while let Some(channel) = own() {
        let shown = channel.status.clone().unwrap_or_default();
        let known = known(&channel, &shown);
        let looked = match timeout(LOOK, look(&channel, &known)).await {
            Ok(Ok(seen)) => seen,
            Ok(Err(why)) => failed(&known, why, this_moment()),
            Err(_) => {
                let why = format!("no answer within {} s", LOOK.as_secs());
                failed(&known, why, this_moment())
            }
        };
        let generation = channel.metadata.generation;
        let looked = looked.stamped(&shown.conditions, generation, Timestamp::now());
        if looked != shown
            && own().is_some()
            && let Err(error) = show(&cluster, &name, &looked).await
        {
            eprintln!("channel {name}: {error}");
        }
        let is_another = || own().is_none_or(|now| now.spec != channel.spec);
        rest(Instant::now() + interval(&channel), &wake, is_another).await;
    }
}

/// Waits for the time of the next look, or until the channel is another one. Its own status and other channels wake it as well: they put nothing off.
async fn rest(until: Instant, wake: &Notify, is_another: impl Fn() -> bool) {
    loop {
        tokio::select! {
            () = sleep_until(until) => return,
            () = wake.notified() => if is_another() {
                return;
            }
        }
    }
}

fn this_moment() -> Date {
    Date::from_seconds(instar_rollout_driver::now().0)
}

/// The result of a look: the status, and the reason of its condition.
struct Looked {
    status: ChannelStatus,
    reason: &'static str,
}

/// The reason when the list is good.
const READ: &str = "Read";

impl Looked {
    fn stamped(
        self,
        before: &[Condition],
        generation: Option<i64>,
        now: Timestamp,
    ) -> ChannelStatus {
        let mut status = self.status;
        let is_ready = self.reason == READ;
        let message = match is_ready {
            true => "the list was read, and has a release",
            false => &status.message,
        };
        let ready = told("Ready", is_ready, self.reason, message);
        status.conditions = vec![stamped(ready, before, generation, now)];
        status
    }
}

/// The known status stays, with a message that says why nothing newer is known. Of a list that has expired meanwhile, no release stays.
fn failed(known: &ChannelStatus, why: String, now: Date) -> Looked {
    let Some(expired) = known.expired(now) else {
        let status = ChannelStatus {
            message: why,
            ..known.clone()
        };
        let reason = "NotRead";
        return Looked { status, reason };
    };
    let status = ChannelStatus {
        version: None,
        image: None,
        date: None,
        releases: Vec::new(),
        message: format!("{expired}; {why}"),
        ..known.clone()
    };
    let reason = "Expired";
    Looked { status, reason }
}

/// The known status of the list that the channel names now: nothing in it is from a list at another address or by another key.
fn known(channel: &Channel, shown: &ChannelStatus) -> ChannelStatus {
    let Ok(source) = Source::of(channel) else {
        // What is wrong is told; the earlier list was good.
        return shown.clone();
    };
    let source = source.to_string();
    let is_another = shown
        .source
        .as_ref()
        .is_some_and(|before| *before != source);
    let known = match is_another {
        true => ChannelStatus::default(),
        false => shown.clone(),
    };
    ChannelStatus {
        source: Some(source),
        ..known
    }
}

fn interval(channel: &Channel) -> Duration {
    let text = channel.spec.interval.as_deref();
    let seconds = text.and_then(|text| text.parse::<Seconds>().ok());
    seconds.map_or(INTERVAL, |it| {
        Duration::from_secs(it.0).clamp(SHORTEST, LONGEST)
    })
}

/// Where a list is, and whose it is.
struct Source {
    name: ChannelName,
    key: PublicKey,
    address: String,
}

impl Source {
    fn of(channel: &Channel) -> Result<Self, String> {
        let spec = &channel.spec;
        let name = spec.channel.clone().unwrap_or_else(|| channel.name_any());
        let name: ChannelName = name.parse().map_err(|error| format!("channel: {error}"))?;
        let key = spec.public_key.parse();
        let key: PublicKey = key.map_err(|error| format!("publicKey: {error}"))?;
        let address = format!("{}/{name}", spec.url.trim_end_matches('/'));
        Ok(Self { name, key, address })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.address, self.key.fingerprint())
    }
}

async fn look(channel: &Channel, known: &ChannelStatus) -> Result<Looked, String> {
    let source = Source::of(channel)?;
    let client = client(channel.spec.ca.as_deref());
    let bytes = document(&client, &format!("{}/{LIST}", source.address), LARGEST).await?;
    let signature = format!("{}/{SIGNATURE}", source.address);
    let signature = document(&client, &signature, LARGEST_SIGNATURE).await?;
    let list = instar_channel::open(&source.name, &source.key, &bytes, &signature);
    let list = list.map_err(|error| error.to_string())?;
    let position = Position::after(position(known).as_ref(), &list, &bytes);
    let position = position.map_err(|error| error.to_string())?;
    let mut seen = status(&list, &position, &channel.spec.architecture, this_moment());
    seen.status.source = Some(source.to_string());
    Ok(seen)
}

/// The newest list that was seen, as the status has it.
fn position(known: &ChannelStatus) -> Option<Position> {
    Some(Position {
        serial: known.serial?,
        list: known.list.as_ref()?.parse().ok()?,
    })
}

fn status(list: &List, position: &Position, architecture: &str, now: Date) -> Looked {
    let expired = list.expires.filter(|expires| *expires < now);
    let releases = match expired {
        Some(_) => Vec::new(),
        None => steps(list, architecture),
    };
    let newest = releases.first();
    let (reason, message) = match (newest, expired) {
        (Some(_), _) => (READ, String::new()),
        (None, Some(expired)) => ("Expired", expired_text(expired)),
        (None, None) => {
            let why = format!("the list has no release for {architecture}");
            ("NoRelease", why)
        }
    };
    let status = ChannelStatus {
        version: newest.map(|release| release.version.to_string()),
        image: newest.map(|release| release.pinned_image().to_string()),
        date: newest.map(|release| release.date.to_string()),
        releases: releases.iter().map(|release| shown(release)).collect(),
        serial: Some(position.serial),
        list: Some(position.list.to_string()),
        expires: list.expires.map(|expires| expires.to_string()),
        message,
        ..ChannelStatus::default()
    };
    Looked { status, reason }
}

fn shown(release: &Release) -> ChannelRelease {
    ChannelRelease {
        version: release.version.to_string(),
        image: release.pinned_image().to_string(),
        upgrades_from: release.upgrades_from.as_ref().map(ToString::to_string),
    }
}

/// The releases for all machines of this architecture that were not withdrawn, the newest first, down to one that may follow every version: no
/// node has to go over an older one.
fn steps<'a>(list: &'a List, architecture: &str) -> Vec<&'a Release> {
    let mut steps = Vec::new();
    for release in &list.releases {
        let is_for_all = release.only_for.is_empty() && release.architecture == architecture;
        if !is_for_all || release.withdrawn.is_some() {
            continue;
        }
        steps.push(release);
        if release.upgrades_from.is_none() {
            break;
        }
    }
    steps
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
        "list": status.list, "expires": status.expires, "message": status.message, "releases": status.releases, "source": status.source,
        "conditions": status.conditions,
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
        for (list, architecture, version, reason, message) in [
            (&good, "amd64", Some("v0.2.0"), "Read", ""),
            (&good, "arm64", Some("v0.2.1"), "Read", ""),
            (
                &good,
                "riscv64",
                None,
                "NoRelease",
                "no release for riscv64",
            ),
            (&late, "amd64", None, "Expired", "has expired on 2026-01-03"),
        ] {
            let position = Position::after(None, list, b"").unwrap();
            let looked = status(list, &position, architecture, now);
            let shown = looked.stamped(&[], None, Timestamp::UNIX_EPOCH);
            let ready = (&shown.conditions[0].status, &*shown.conditions[0].reason);
            let holds = if version.is_some() { "True" } else { "False" };
            assert_eq!(ready, (&holds.to_owned(), reason), "{architecture}");
            assert_eq!(shown.version.as_deref(), version, "{architecture}");
            assert!(shown.message.contains(message), "{}", shown.message);
            assert_eq!(shown.image.is_some(), version.is_some());
        }
    }

    #[test]
    fn a_list_that_expires_while_its_server_is_silent_has_no_release() {
        let expires = json!({"expires": "2026-01-03T00:00:00Z"});
        let list = list(expires, &[release("v0.2.0", json!({}))]);
        let position = Position::after(None, &list, b"").unwrap();
        let date = |text: &str| text.parse::<Date>().unwrap();
        let before = date("2026-01-02T12:00:00Z");
        let known = status(&list, &position, "amd64", before).status;
        for (now, has_release, reason, message) in [
            ("2026-01-02T23:59:59Z", true, "NotRead", "it is silent"),
            (
                "2026-01-03T00:00:01Z",
                false,
                "Expired",
                "the list has expired on 2026-01-03T00:00:00Z; it starts no upgrade until a newer one is read; it is silent",
            ),
        ] {
            let Looked {
                status,
                reason: told,
            } = failed(&known, "it is silent".to_owned(), date(now));
            assert_eq!((told, &*status.message), (reason, message));
            assert_eq!(status.version.is_some(), has_release, "{now}");
            assert_eq!(!status.releases.is_empty(), has_release, "{now}");
            // An older list is still not believed.
            assert_eq!((status.serial, &status.list), (known.serial, &known.list));
        }
    }

    #[tokio::test]
    async fn a_look_comes_at_its_time_however_often_others_change() {
        let wake = Notify::new();
        let began = Instant::now();
        let others = async {
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                wake.notify_one();
            }
        };
        let until = began + Duration::from_millis(200);
        let rested = timeout(Duration::from_secs(10), rest(until, &wake, || false));
        tokio::select! {
            rested = rested => assert!(rested.is_ok(), "it was put off"),
            () = others => {}
        }
        assert!(Instant::now() >= until);
        // A changed channel is read at once.
        wake.notify_one();
        rest(began + Duration::from_secs(600), &wake, || true).await;
    }

    #[test]
    fn releases_are_shown_down_to_one_that_may_follow_all() {
        let after = |version: &str| json!({"upgradesFrom": format!(">={version}")});
        let mut withdrawn = after("v0.1.0");
        withdrawn["withdrawn"] = json!("it burns");
        let releases = [
            release("v0.5.0", after("v0.4.0")),
            release("v0.4.0", withdrawn),
            release("v0.3.0", after("v0.2.0")),
            release("v0.2.0", json!({})),
            release("v0.1.0", json!({})),
        ];
        let list = list(json!({}), &releases);
        let position = Position::after(None, &list, b"").unwrap();
        let now: Date = "2026-02-01T00:00:00Z".parse().unwrap();
        let shown = status(&list, &position, "amd64", now).status.releases;
        let shown = shown
            .iter()
            .map(|it| (&*it.version, it.upgrades_from.as_deref()));
        let expected = [
            ("v0.5.0", Some(">=v0.4.0")),
            ("v0.3.0", Some(">=v0.2.0")),
            ("v0.2.0", None),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
    }

    /// The key of an Ed25519 pair that nobody has: its last byte is this one.
    fn key(last: u8) -> String {
        use base64::Engine as _;
        let mut der = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00".to_vec();
        der.extend([7; 31]);
        der.push(last);
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    }

    fn channel(url: &str, channel: &str, key: &str) -> Channel {
        let spec = json!({"url": url, "channel": channel, "publicKey": key});
        Channel::new("stable", serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn an_interval_has_bounds() {
        for (text, expected) in [
            (None, INTERVAL),
            (Some("30m"), Duration::from_secs(1800)),
            (Some("1s"), SHORTEST),
            (Some("18446744073709551615s"), LONGEST),
        ] {
            let mut channel = channel("https://channels.example", "stable", &key(1));
            channel.spec.interval = text.map(str::to_owned);
            assert_eq!(interval(&channel), expected);
            assert!(Instant::now().checked_add(interval(&channel)).is_some());
        }
    }

    #[test]
    fn an_edited_channel_begins_anew() {
        let url = "https://channels.example";
        let first = channel(url, "stable", &key(1));
        let seen = ChannelStatus {
            version: Some("v0.2.0".to_owned()),
            image: Some("r/i:v0.2.0".to_owned()),
            serial: Some(7),
            source: Some(Source::of(&first).unwrap().to_string()),
            ..ChannelStatus::default()
        };
        let older = ChannelStatus {
            source: None,
            ..seen.clone()
        };
        for (edited, shown, serial) in [
            (&first, &seen, Some(7)),
            (
                &channel(&format!("{url}/"), "stable", &key(1)),
                &seen,
                Some(7),
            ),
            (&channel(url, "stable", &key(2)), &seen, None),
            (&channel(url, "beta", &key(1)), &seen, None),
            (
                &channel("https://other.example", "stable", &key(1)),
                &seen,
                None,
            ),
            (&channel(url, "stable", "no key"), &seen, Some(7)),
            // As an operator wrote it that knew no sources.
            (&first, &older, Some(7)),
        ] {
            let known = known(edited, shown);
            assert_eq!(known.serial, serial, "{:?}", edited.spec);
            assert_eq!(
                (known.version.is_some(), known.image.is_some()),
                (serial.is_some(), serial.is_some())
            );
            assert!(known.source.is_some());
        }
    }
}
