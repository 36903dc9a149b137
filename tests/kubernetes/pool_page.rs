//! The operator's page: who may see pools and steer them, in a browser on a phone and on a laptop.
//!
//! The same story twice: with a stand-in for the API server, which takes seconds, and with a real one. No machine takes part: the nodes are
//! objects whose APIs do not answer, so that a rollout stays where it is.

mod plane;

use anyhow::ensure;
use instar_tests::{Browser, FleetOperator, Outcome, Scratch, Screen, Test, chapters, http, tests};
use serde_json::{Value, json};

use self::plane::{Plane, Visitor};
use crate::node_upgrades::eventually;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_pool_is_steered_on_the_page_over_a_stand_in,
        a_pool_is_steered_on_the_page_of_a_real_cluster,
    ]
}

async fn a_pool_is_steered_on_the_page_over_a_stand_in(scratch: Scratch) -> Outcome {
    let plane = Plane::stand_in()?;
    the_story(&Site::start(plane, &scratch)?, &scratch).await
}

async fn a_pool_is_steered_on_the_page_of_a_real_cluster(scratch: Scratch) -> Outcome {
    let site = Site::start(Plane::real(&scratch)?, &scratch)?;
    the_story(&site, &scratch).await?;
    chapters![the_account_of_the_page_has_no_right_too_many(&site)].await
}

async fn the_story(site: &Site, scratch: &Scratch) -> Outcome {
    chapters![
        strangers_see_and_change_nothing(site),
        a_phone_shows_what_nodes_wait_for(site, scratch),
        a_reader_changes_nothing(site, scratch),
        a_person_approves_pauses_and_resumes(site),
        a_person_holds_a_node(site),
        another_replica_serves_it_too(site, scratch),
        a_person_sends_the_nodes_back(site),
        a_laptop_shows_all_pools(site, scratch),
    ]
    .await
}

/// Two pools, of which one has a rollout, and an operator.
struct Site {
    plane: Plane,
    operator: FleetOperator,
    phone: Browser,
}

impl Site {
    fn start(plane: Plane, scratch: &Scratch) -> anyhow::Result<Self> {
        plane.put("nodes", node("n1", "r1", "v0.2.0"))?;
        plane.put("nodes", node("n2", "r1", "v0.1.0"))?;
        plane.put("nodes", node("n3", "r1", "v0.1.0"))?;
        plane.put("nodes", node("n4", "r2", "v0.1.0"))?;
        plane.put("pools", with_rollout(pool("lab", "r1")))?;
        plane.put("pools", pool("office", "r2"))?;
        let site = Self {
            operator: plane.operator(scratch, "first")?,
            phone: Browser::start(scratch, Screen::Phone)?,
            plane,
        };
        site.open(&site.phone, &site.operator, Visitor::Steers)?;
        Ok(site)
    }

    /// Opens an operator's page as this visitor.
    fn open(&self, browser: &Browser, operator: &FleetOperator, visitor: Visitor) -> Outcome {
        let token = self.plane.token(visitor)?;
        browser.open(&format!("http://{}/#{token}", operator.page()))?;
        browser.wait_for_text("connected")?;
        browser.wait_for_text("lab: v0.2.0")?;
        Ok(())
    }

    /// Clicks on a button of the pool `lab`, and waits until the page says these words.
    fn click(&self, button: &str, words: &str) -> Outcome {
        click(&self.phone, button, words)
    }

    /// Waits until a field of an object is this.
    async fn becomes(&self, object: [&str; 2], field: &str, value: Value) -> Outcome {
        eventually(&format!("{object:?} has {field} {value}"), || {
            let object = self.plane.get(object[0], object[1])?;
            let found = object.pointer(field).unwrap_or(&Value::Null);
            ensure!(*found == value, "{found}");
            Ok(())
        })
        .await
    }
}

fn click(browser: &Browser, button: &str, words: &str) -> Outcome {
    browser.click(&format!("[data-name=lab] {button}"))?;
    browser.wait_for_text(words)?;
    Ok(())
}

fn node(name: &str, rack: &str, version: &str) -> Value {
    let ready = json!({"type": "Ready", "status": "True", "reason": "T", "message": "t"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "labels": {"rack": rack, "instar.dev/version": version},
            "annotations": {"instar.dev/api-address": "127.0.0.1:1"},
        },
        "status": {"conditions": [ready]},
    })
}

fn pool(name: &str, rack: &str) -> Value {
    let policy = json!({"waves": [{"select": {"count": 1}}], "approval": "waves"});
    json!({
        "apiVersion": "instar.dev/v1alpha1", "kind": "Pool", "metadata": {"name": name},
        "spec": {"nodeSelector": {"matchLabels": {"rack": rack}}, "image": "r.example/i:v0.2.0", "policy": policy},
    })
}

/// The pool with a rollout that an operator has begun: its first node is updated.
fn with_rollout(mut pool: Value) -> Value {
    let release =
        |version: &str| json!({"version": version, "image": format!("r.example/i:{version}")});
    let entry = |step: Value| json!({"pool": "", "labels": [], "before": release("v0.1.0"), "began": 5, "hold": null, "step": step});
    let record = json!({
        "format": 1, "revision": 1, "target": release("v0.2.0"), "policies": [{}], "phase": {"is": "rolling"},
        "paused": null, "approved": 0, "forgiven": 0, "stalled": null,
        "machines": {
            "n1": entry(json!({"is": "updated", "at": 7})),
            "n2": entry(json!({"is": "waiting"})),
            "n3": entry(json!({"is": "waiting"})),
        },
    });
    pool["status"] =
        json!({"rollout": {"number": 1, "image": "r.example/i:v0.2.0", "record": record}});
    pool
}

/// Neither a look nor a press without a token of the cluster, nor a press of somebody who may only look.
async fn strangers_see_and_change_nothing(site: &Site) -> Outcome {
    let reader = site.plane.token(Visitor::Looks)?;
    for (token, request, expected) in [
        ("", ["GET", "/rollouts"], 401),
        ("stranger", ["GET", "/rollouts"], 401),
        ("", ["POST", "/commands"], 401),
        ("stranger", ["POST", "/commands"], 401),
        (&reader, ["POST", "/commands"], 403),
    ] {
        let status = pause_with(site, token, request)?;
        ensure!(status == expected, "{request:?}: {status}");
    }
    let pool = site.plane.get("pools", "lab")?;
    ensure!(pool["spec"]["paused"] != true, "{pool:#}");
    Ok(())
}

/// Sends the command to pause with this token; returns the status of the answer.
fn pause_with(site: &Site, token: &str, [method, path]: [&str; 2]) -> anyhow::Result<u16> {
    let pause = br#"{"rollout": "lab", "command": "pause"}"#;
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", &*bearer)];
    let answer = http(&site.operator.page(), method, path, &headers, pause)?;
    Ok(answer.status)
}

async fn a_phone_shows_what_nodes_wait_for(site: &Site, scratch: &Scratch) -> Outcome {
    let text = site.phone.wait_for_text("127.0.0.1:1")?;
    for words in [
        "rolling; 1 of 3 updated",
        "runs v0.1.0, gets v0.2.0",
        "office",
    ] {
        ensure!(text.contains(words), "{words} is missing: {text}");
    }
    it_is_as_wide_as_the_phone(&site.phone)?;
    println!("{}", site.phone.screenshot("phone")?.display());
    ensure!(scratch.join("phone.png").exists());
    Ok(())
}

fn it_is_as_wide_as_the_phone(phone: &Browser) -> Outcome {
    let width = "return document.documentElement.scrollWidth";
    let width = phone.run(width)?.as_u64();
    let screen = u64::from(Screen::Phone.size().0);
    ensure!(width <= Some(screen), "{width:?}");
    Ok(())
}

async fn a_reader_changes_nothing(site: &Site, scratch: &Scratch) -> Outcome {
    let laptop = Browser::start(scratch, Screen::Laptop)?;
    site.open(&laptop, &site.operator, Visitor::Looks)?;
    click(&laptop, "[data-command=pause]", "forbidden")?;
    let pool = site.plane.get("pools", "lab")?;
    ensure!(pool["spec"]["paused"] != true, "{pool:#}");
    Ok(())
}

async fn a_person_approves_pauses_and_resumes(site: &Site) -> Outcome {
    let lab = ["pools", "lab"];
    site.click("[data-command=approve]", "Approve wave 2")?;
    site.becomes(lab, "/spec/approvedWaves", json!(1)).await?;
    site.click("[data-command=pause]", "paused: spec.paused is set")?;
    site.becomes(lab, "/spec/paused", json!(true)).await?;
    site.click("[data-command=resume]", "Pause")?;
    site.becomes(lab, "/spec/paused", json!(false)).await
}

async fn a_person_holds_a_node(site: &Site) -> Outcome {
    let hold = "/metadata/annotations/instar.dev~1hold";
    let of = "[data-machine=n2]";
    let words = "held: on the page";
    site.click(&format!("[data-command=hold]{of}"), words)?;
    site.becomes(["nodes", "n2"], hold, json!("on the page"))
        .await?;
    site.click(&format!("[data-command=release]{of}"), "Hold")?;
    site.becomes(["nodes", "n2"], hold, Value::Null).await
}

/// One that waits for the lease.
async fn another_replica_serves_it_too(site: &Site, scratch: &Scratch) -> Outcome {
    let second = site.plane.operator(scratch, "second")?;
    let laptop = Browser::start(scratch, Screen::Laptop)?;
    eventually("the second page", || {
        site.open(&laptop, &second, Visitor::Steers)
    })
    .await?;
    click(
        &laptop,
        "[data-command=pause]",
        "paused: spec.paused is set",
    )?;
    click(&laptop, "[data-command=resume]", "Pause")?;
    let log = second.log()?;
    ensure!(!log.contains("has the lease"), "{log}");
    Ok(())
}

async fn a_person_sends_the_nodes_back(site: &Site) -> Outcome {
    site.click("[data-command=rollback]", "Send all machines")?;
    site.phone.click("dialog [value=yes]")?;
    site.phone.wait_for_text("going back")?;
    let command = "/metadata/annotations/instar.dev~1command";
    site.becomes(["pools", "lab"], command, Value::Null).await?;
    site.click("[data-command=abort]", "End the rollout?")?;
    site.phone.click("dialog [value=yes]")?;
    site.phone.wait_for_text("aborted")?;
    let phase = "/status/phase";
    site.becomes(["pools", "lab"], phase, json!("Aborted"))
        .await
}

async fn a_laptop_shows_all_pools(site: &Site, scratch: &Scratch) -> Outcome {
    let laptop = Browser::start(scratch, Screen::Laptop)?;
    site.open(&laptop, &site.operator, Visitor::Steers)?;
    let text = laptop.wait_for_text("n4")?;
    ensure!(
        text.contains("office") && text.contains("waiting"),
        "{text}"
    );
    println!("{}", laptop.screenshot("laptop")?.display());
    println!("{}", site.operator.log()?);
    Ok(())
}

/// Without any of these verbs the chapters above would fail.
async fn the_account_of_the_page_has_no_right_too_many(site: &Site) -> Outcome {
    let (granted, used) = site.plane.rights_of_the_page()?;
    ensure!(granted == used, "granted {granted:#?}, used {used:#?}");
    Ok(())
}
