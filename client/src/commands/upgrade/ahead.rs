//! `upgrade --prepare`: has the node fetch and prepare an upgrade ahead, or shows what that would take.

use instar_api::instar::upgrade_service_client::UpgradeServiceClient;
use instar_api::instar::{NeededImage, PrepareUpgradeRequest, PrepareUpgradeResponse};
use instar_client::{Failure, Node};
use serde_json::{Value, json};

use crate::cli::{Global, Upgrade};
use crate::commands::image::wire_terms;
use crate::output::{human, table};

pub(super) async fn run(global: &Global, node: &Node, arguments: &Upgrade) -> Result<(), Failure> {
    let request = PrepareUpgradeRequest {
        image: arguments.image.clone(),
        force: arguments.force,
        terms: Some(wire_terms(&arguments.terms)),
        dry_run: arguments.dry_run,
    };
    let mut client = UpgradeServiceClient::new(node.channel());
    let reply = client.prepare(node.request(request)).await;
    let reply = reply.map_err(|status| node.explain("does not prepare the upgrade", status))?;
    let plan = reply.into_inner();
    global.output.show(
        || text(node.name(), &plan, arguments.dry_run),
        || json(node.name(), &plan, arguments.dry_run),
    )
}

fn text(node: &str, plan: &PrepareUpgradeResponse, dry_run: bool) -> String {
    let (before, after) = (&plan.version_before, &plan.version);
    let mut text = match dry_run {
        true => format!("{node}: would prepare {after}, {before} runs; nothing has changed"),
        false => format!(
            "{node}: prepares {after}, {before} runs on; \"get pins\" and \"get upgrades\" show how far it is"
        ),
    };
    for objection in &plan.overridden {
        text.push_str(&format!("\nforced, although {objection}"));
    }
    let fits = match plan.fits {
        true => "there is room",
        false => "THERE IS NO ROOM",
    };
    text.push_str(&format!(
        "\n{} to fetch; {fits}: {} needed, {} free (of which {} are kept for upgrades), images have {} of {}\n",
        human(plan.fetch),
        human(plan.needed),
        human(plan.free),
        human(plan.reserve),
        human(plan.used),
        human(plan.limit),
    ));
    let rows: Vec<Vec<String>> = plan.images.iter().map(row).collect();
    text.push_str(&table(&["IMAGE", "DIGEST", "TO FETCH"], &rows));
    text
}

fn row(image: &NeededImage) -> Vec<String> {
    let bytes = match image.bytes {
        0 => "is here".to_owned(),
        bytes => human(bytes),
    };
    vec![image.reference.clone(), image.digest.clone(), bytes]
}

fn json(node: &str, plan: &PrepareUpgradeResponse, dry_run: bool) -> Value {
    let images = plan.images.iter().map(|image| {
        json!({
            "image": image.reference,
            "digest": image.digest,
            "bytes": image.bytes,
        })
    });
    json!({
        "node": node,
        "dry_run": dry_run,
        "version_before": plan.version_before,
        "version_after": plan.version,
        "images": images.collect::<Vec<_>>(),
        "fetch": plan.fetch,
        "needed": plan.needed,
        "free": plan.free,
        "reserve": plan.reserve,
        "used": plan.used,
        "limit": plan.limit,
        "fits": plan.fits,
        "overridden": plan.overridden,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fetched_and_the_room_for_it_are_told() {
        let image = |reference: &str, bytes: u64| NeededImage {
            reference: reference.to_owned(),
            digest: "sha256:1".to_owned(),
            bytes,
        };
        let plan = PrepareUpgradeResponse {
            version_before: "v0.1.0".to_owned(),
            version: "v0.2.0".to_owned(),
            images: vec![image("r.io/os:v2", 30 << 20), image("r.io/web:v1", 0)],
            fetch: 30 << 20,
            needed: 60 << 20,
            free: 900 << 20,
            reserve: 100 << 20,
            used: 0,
            limit: 750 << 20,
            fits: true,
            overridden: Vec::new(),
        };
        let told = text("node-1", &plan, true);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(
            lines,
            [
                "node-1: would prepare v0.2.0, v0.1.0 runs; nothing has changed",
                "30.0 MiB to fetch; there is room: 60.0 MiB needed, 900.0 MiB free (of which 100.0 MiB are kept for upgrades), images have 0 B of 750.0 MiB",
                "IMAGE        DIGEST    TO FETCH",
                "r.io/os:v2   sha256:1  30.0 MiB",
                "r.io/web:v1  sha256:1  is here",
            ]
        );
        let full = PrepareUpgradeResponse {
            fits: false,
            ..plan
        };
        assert!(text("node-1", &full, true).contains("THERE IS NO ROOM"));
        assert_eq!(json("node-1", &full, false)["fits"], false);
    }
}
