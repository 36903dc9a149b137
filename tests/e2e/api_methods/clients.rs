//! An operator's daily calls: time, images, health, values, certificates.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use instar_tests::{Outcome, WrongTimeServer, chapters};

use super::{AskedNode, members, text};

/// The time server's clock minus the host's.
const AHEAD: Duration = Duration::from_secs(1000);

pub(super) async fn clients_are_served(asked: &AskedNode) -> Outcome {
    chapters![
        the_clock_is_compared_with_a_time_server(asked),
        images_are_listed_and_pulled(asked),
        images_that_are_needed_or_absent_are_refused(asked),
        the_node_is_healthy(asked),
        values_are_written_and_deleted(asked),
        a_new_client_config_lets_a_reader_look(asked),
        tables_and_yaml_say_the_same(asked),
    ]
    .await
}

async fn the_clock_is_compared_with_a_time_server(asked: &AskedNode) -> Outcome {
    let server = WrongTimeServer::start(AHEAD)?;
    let name = server.host_for_guest();
    let check = ["time", "--check", &name];
    let time = asked.one(&check).await?;
    ensure!(time["server"] == name.as_str(), "{time}");
    let behind = time["behind_seconds"].as_f64().unwrap_or(0.0);
    let off = (behind - AHEAD.as_secs_f64()).abs();
    ensure!(off < 60.0, "{time}");
    drop(server);
    asked.refuses(&check, "gives no time").await
}

async fn images_are_listed_and_pulled(asked: &AskedNode) -> Outcome {
    let in_use = asked.registry.image_for_guest("greeter:v1");
    let listed = asked.one(&["image", "list"]).await?;
    let images = members(&listed["images"]).iter();
    let names: Vec<&str> = images.map(|image| text(&image["name"])).collect();
    ensure!(names == [in_use.as_str()], "{listed}");
    let pulled = asked.one(&["image", "pull", &in_use]).await?;
    let name = text(&pulled["image"]);
    ensure!(name.contains("/greeter@sha256:"), "{pulled}");
    Ok(())
}

async fn images_that_are_needed_or_absent_are_refused(asked: &AskedNode) -> Outcome {
    let in_use = asked.registry.image_for_guest("greeter:v1");
    let absent = asked.registry.image_for_guest("nothing:v1");
    for (verb, image, words) in [
        ("remove", &in_use, "is needed by the container greeter"),
        ("pull", &absent, "nothing:v1"),
        ("remove", &absent, "there is no image"),
    ] {
        asked.refuses(&["image", verb, image], words).await?;
    }
    Ok(())
}

async fn the_node_is_healthy(asked: &AskedNode) -> Outcome {
    let health = asked.lines(&["health", "--wait-timeout", "2m"]).await?;
    let last = health.last().context("health said nothing")?;
    ensure!(text(&last["message"]).starts_with("healthy"), "{health:?}");
    Ok(())
}

async fn values_are_written_and_deleted(asked: &AskedNode) -> Outcome {
    asked.one(&["meta", "write", "0x0a", "value"]).await?;
    asked.one(&["meta", "delete", "10"]).await?;
    let again = ["meta", "delete", "10"];
    asked
        .refuses(&again, "there is no value under key 10")
        .await
}

async fn a_new_client_config_lets_a_reader_look(asked: &AskedNode) -> Outcome {
    let file = asked.scratch.join("reader.yaml");
    let path = file.to_string_lossy().into_owned();
    let for_an_hour = ["--roles", "os:reader", "--crt-ttl", "1h"];
    let new = [&["config", "new", &path][..], &for_an_hour].concat();
    asked.one(&new).await?;
    let made = std::fs::read_to_string(&file)?;
    ensure!(made.contains("endpoints:"), "{made}");
    ensure!(made.contains("key:"), "{made}");
    let reader = asked.instarctl.with_config(file);
    let version = reader.run(&["version"]).await?;
    ensure!(version.code == Some(0), "{version:?}");
    let read = reader.run(&["read", "/etc/os-release"]).await?;
    ensure!(read.code == Some(4), "{read:?}");
    let other = ["config", "new", "-", "--roles", "os:everything"];
    asked.refuses(&other, "is no role").await
}

async fn tables_and_yaml_say_the_same(asked: &AskedNode) -> Outcome {
    let table = asked.instarctl.run(&["disks"]).await?;
    ensure!(table.output.starts_with("NODE"), "{table:?}");
    ensure!(table.output.contains("/dev/vda"), "{table:?}");
    let yaml = asked.instarctl.run(&["-o", "yaml", "disks"]).await?;
    ensure!(yaml.output.starts_with("---\n"), "{yaml:?}");
    ensure!(yaml.output.contains("device: /dev/vda"), "{yaml:?}");
    Ok(())
}
