//! Logs, the lines of the kernel, and what goes on until somebody ends it.

use super::*;

pub(super) async fn logs_are_as_long_as_asked(talosctl: &Talosctl<'_>) -> Outcome {
    rows(talosctl, LOGS).await?;
    let all = talosctl.run("logs machined").await.output;
    let last = talosctl.run("logs machined --tail 3").await.output;
    ensure!(
        last.lines().count() == 3 && all.lines().count() > 3,
        "{last}"
    );
    let none = talosctl.run("logs machined --tail 0").await;
    ensure!(none.code == Some(0) && none.output.is_empty(), "{none:?}");
    Ok(())
}

const LOGS: &[Row<'_>] = &[
    ("logs machined", 0, &["booted v0.1.0"]),
    ("logs no-such", 1, &["no-such"]),
    ("logs -k no-such", 1, &["no-such"]),
    ("dmesg", 0, &["kern: ", ": Linux version"]),
    ("dmesg --tail", 0, &[]),
];

/// Checks for "facility: priority: [time]: message", the priority right-aligned in seven places.
pub(super) async fn lines_of_the_kernel_have_four_fields(talosctl: &Talosctl<'_>) -> Outcome {
    for line in talosctl.run("dmesg").await.output.lines() {
        let fields: Vec<&str> = line.splitn(4, ": ").collect();
        ensure!(
            fields.len() == 4 && fields[1].len() == 7 && fields[2].starts_with("[20"),
            "{line:?}"
        );
    }
    Ok(())
}

pub(super) async fn streams_go_on(talosctl: &Talosctl<'_>) -> Outcome {
    for (command, is_meant) in STREAMS {
        goes_on(talosctl, command, *is_meant).await?;
    }
    Ok(())
}

const STREAMS: &[Stream] = &[
    ("logs machined -f", |line| line.contains("booted v0.1.0")),
    ("dmesg -f", |line| line.contains("Linux version")),
    ("events --tail -1", |line| {
        line.contains("stage 4 ready true")
    }),
    ("events --duration 3600", |line| {
        line.contains("sequence boot")
    }),
];

pub(super) async fn events_begin_after_the_one_that_is_named(talosctl: &Talosctl<'_>) -> Outcome {
    let first = talosctl.run_until("events --tail -1", |_| true).await;
    let id = first.output.split(' ').next().unwrap_or_default();
    let since = format!("events --since {id}");
    goes_on(talosctl, &since, |_| true).await?;
    let said = talosctl.run_until(&since, |_| true).await;
    ensure!(
        !said.output.contains(id) && said.output > first.output,
        "{said:?}"
    );
    Ok(())
}
