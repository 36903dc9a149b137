//! Resources are listed and watched.

use instar_tests::GREETER;

use super::*;

/// No alias is ambiguous.
async fn every_alias_means_one_type(talosctl: &Talosctl<'_>) -> Outcome {
    let said = talosctl.run("get rd -o yaml").await;
    let mut owners = std::collections::BTreeMap::new();
    for line in said.output.lines() {
        let (id, spec) = line.split_once(' ').unwrap_or_default();
        let spec: serde_json::Value = serde_json::from_str(spec)?;
        for alias in spec["allAliases"].as_array().into_iter().flatten() {
            let alias = alias.to_string().to_lowercase();
            let other = owners.insert(alias.clone(), id.to_owned());
            ensure!(other.is_none(), "{alias} means {id} and {other:?}");
        }
    }
    ensure!(owners.len() > 100, "{owners:#?}");
    Ok(())
}

pub(super) async fn resources_are_listed_and_watched(talosctl: &Talosctl<'_>) -> Outcome {
    every_alias_means_one_type(talosctl).await?;
    rows(talosctl, RESOURCES).await?;
    watches_begin_with_what_there_is(talosctl).await?;
    what_changes_has_no_mark(talosctl).await
}

const RESOURCES: &[Row<'_>] = &[
    (
        "get members",
        0,
        &["HOSTNAME", "cluster Member node ", "controlplane"],
    ),
    (
        "get machinestatus",
        0,
        &["runtime MachineStatus machine", "running true"],
    ),
    (
        "get services",
        0,
        &["runtime Service greeter", " true true"],
    ),
    (
        "get hostname",
        0,
        &["network HostnameStatus hostname 1 node"],
    ),
    ("get hostname hostname", 0, &["hostname 1 node"]),
    ("get HOSTNAME -o yaml", 0, &["\"hostname\":\"node\""]),
    (
        "get rd",
        0,
        &[
            "resourcedefinitions.meta.cosi.dev",
            "hostnamestatuses.net.talos.dev",
        ],
    ),
    ("get nodeaddress current -o yaml", 0, &["10.0.2.15/24"]),
    ("get addresses", 0, &["10.0.2.15/24 eth0"]),
    ("get routes", 0, &["10.0.2.2"]),
    ("get links", 0, &["eth0"]),
    ("get disks vda", 0, &["runtime Disk vda"]),
    ("get systemdisk", 0, &["vda"]),
    ("get mc v1alpha1 -o yaml", 0, &["hostname: node"]),
    ("get machinetype", 0, &["controlplane"]),
    (
        "get hostname --namespace runtime",
        0,
        &["NAMESPACE TYPE ID VERSION HOSTNAME"],
    ),
    // The server is older than the client.
    (
        "get nonsense",
        1,
        &["WARNING: v0.1.0 is older", "is not registered"],
    ),
    ("get services no-such", 1, &["NotFound"]),
    ("get services GREETER", 1, &["NotFound"]),
];

async fn watches_begin_with_what_there_is(talosctl: &Talosctl<'_>) -> Outcome {
    for (command, is_meant) in WATCHES {
        goes_on(talosctl, command, *is_meant).await?;
    }
    Ok(())
}

const WATCHES: &[Stream] = &[
    ("get services -w", |line| {
        line.starts_with("+ ") && line.contains(GREETER)
    }),
    ("get hostname hostname -w", |line| {
        line.starts_with("+ ") && line.contains("node")
    }),
    // An unknown resource: the client is told that it is destroyed, with a document, else the client ends.
    ("get services no-such -w", |line| {
        line.starts_with("- ") && line.contains("no-such")
    }),
];

async fn what_changes_has_no_mark(talosctl: &Talosctl<'_>) -> Outcome {
    let watched = goes_on(talosctl, "get services -w", |line| {
        line.starts_with(" runtime Service greeter")
    });
    let restarted = async {
        let said = talosctl.run("service greeter restart").await;
        ensure!(said.code == Some(0), "{said:?}");
        Ok(())
    };
    tokio::try_join!(watched, restarted).map(drop)
}
