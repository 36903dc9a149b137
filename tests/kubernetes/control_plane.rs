//! The test bed itself: the control plane is a real one, and a token lets a node in and nobody further.

use anyhow::ensure;
use instar_tests::{ControlPlane, Outcome, Scratch, Test, chapters, tests};

pub(crate) fn tests() -> Vec<Test> {
    tests![a_control_plane_answers]
}

async fn a_control_plane_answers(scratch: Scratch) -> Outcome {
    let plane = ControlPlane::start(&scratch)?;
    chapters![
        it_is_of_the_version_that_was_built(&plane),
        a_token_authenticates(&plane),
        a_token_reads_no_secrets(&plane),
        another_token_is_refused(&plane),
    ]
    .await
}

async fn it_is_of_the_version_that_was_built(plane: &ControlPlane) -> Outcome {
    let version = plane.kubectl().run(&["version", "-o", "json"])?;
    println!("{version}");
    ensure!(version.matches("\"gitVersion\": \"v1.").count() == 2);
    Ok(())
}

async fn a_token_authenticates(plane: &ControlPlane) -> Outcome {
    let bearer = plane.kubectl_by_token(&plane.token());
    let who = bearer.run(&["auth", "whoami"])?;
    println!("{who}");
    ensure!(who.contains("system:bootstrap:") && who.contains("system:bootstrappers"));
    Ok(())
}

async fn a_token_reads_no_secrets(plane: &ControlPlane) -> Outcome {
    let bearer = plane.kubectl_by_token(&plane.token());
    let answer = bearer.get(&["secrets", "-n", "kube-system"]);
    let error = answer.err().map(|error| format!("{error:#}"));
    ensure!(
        error
            .as_ref()
            .is_some_and(|text| text.contains("Forbidden")),
        "{error:?}"
    );
    Ok(())
}

async fn another_token_is_refused(plane: &ControlPlane) -> Outcome {
    let stranger = plane.kubectl_by_token("abcdef.fedcba9876543210");
    let error = stranger.run(&["auth", "whoami"]).err();
    let text = error.map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(
        text.contains("Unauthorized") || text.contains("must be logged in"),
        "{text}"
    );
    Ok(())
}
