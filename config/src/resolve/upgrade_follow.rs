//! The channel that a machine follows by itself.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    super::{
        model::{Approval, FleetLock, LockGroup, UpgradeFollow},
        section::Section,
    },
    Documents,
    containers::within,
    window,
};

/// Limits on folders and labels.
const MOST_URLS: usize = 8;
const MOST_LABELS: usize = 32;
const DAY: Duration = Duration::from_secs(24 * 3600);
const INTERVAL: Duration = Duration::from_secs(3600);
const INTERVALS: RangeInclusive<Duration> = Duration::from_secs(10)..=DAY.saturating_mul(7);
const HEALTHY_FOR: Duration = Duration::from_secs(5 * 60);

pub(super) fn upgrade_follow(documents: &Documents<'_>) -> Option<UpgradeFollow> {
    let document = documents.one("UpgradeFollowConfig")?;
    let (download, switch) = (document.section("download"), document.section("switch"));
    let window = |section: &Option<Section<'_>>| section.as_ref().map_or(Some(None), window::of);
    let (channel, key) = (document.required("channel"), document.required("publicKey"));
    let healthy_for = within(&document, "healthyFor", Duration::ZERO..=DAY, HEALTHY_FOR);
    let follow = UpgradeFollow {
        channel: channel?,
        urls: document.parsed_list("urls"),
        key: key?,
        interval: within(&document, "interval", INTERVALS, INTERVAL)?,
        jitter: within(&document, "jitter", Duration::ZERO..=DAY, Duration::ZERO)?,
        labels: document.parsed_list("labels"),
        download_window: window(&download)?,
        bandwidth: download.and_then(|section| section.parsed("bandwidth")),
        switch_window: window(&switch)?,
        approval: approval(&document)?,
        healthy_for: healthy_for?,
        hold_for: document.duration("holdFor"),
        report: document.parsed("report"),
        fleet_lock: match document.section("fleetLock") {
            Some(section) => Some(fleet_lock(&section)?),
            None => None,
        },
    };
    check(&document, &follow);
    Some(follow)
}

fn check(document: &Section<'_>, follow: &UpgradeFollow) {
    if follow.urls.len() > MOST_URLS {
        let message = format_args!("at most {MOST_URLS} folders can be asked");
        document.wrong_field("urls", message);
    }
    if follow.labels.len() > MOST_LABELS {
        let message = format_args!("a machine can have at most {MOST_LABELS} labels");
        document.wrong_field("labels", message);
    }
    let windows = [&follow.download_window, &follow.switch_window];
    let shortest = windows
        .into_iter()
        .flatten()
        .map(|window| window.length())
        .min();
    if shortest.is_some_and(|length| follow.jitter >= length) {
        document.wrong_field(
            "jitter",
            "this must be shorter than each window: a machine whose own time is after its end would never switch",
        );
    }
}

fn approval(document: &Section<'_>) -> Option<Approval> {
    let key = document.text("approvalKey").is_some();
    match (document.text("approval").unwrap_or("none"), key) {
        ("key", true) => document.parsed("approvalKey").map(Approval::ByKey),
        ("key", false) => {
            document.wrong_field("approvalKey", "`approval: key` needs the key here");
            None
        }
        (_, true) => {
            document.wrong_field("approvalKey", "this is for `approval: key`");
            None
        }
        ("call", false) => Some(Approval::ByCall),
        (_, false) => Some(Approval::NotNeeded),
    }
}

fn fleet_lock(section: &Section<'_>) -> Option<FleetLock> {
    let group = match section.text("group") {
        Some(_) => section.parsed("group")?,
        None => LockGroup::default(),
    };
    Some(FleetLock {
        url: section.required("url")?,
        group,
    })
}
