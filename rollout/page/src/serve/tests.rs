#![allow(clippy::unwrap_used)]
use std::cell::RefCell;

use hyper::client::conn::http1 as client;
use tokio::task::LocalSet;

use super::*;
use crate::View;

/// Rollouts that a test changes.
#[derive(Clone, Default)]
struct Told {
    views: Rc<RefCell<Vec<View>>>,
    commands: Rc<RefCell<Vec<(String, Command)>>>,
}

impl Rollouts for Told {
    async fn views(&self) -> Result<Vec<View>, String> {
        Ok(self.views.borrow().clone())
    }

    async fn command(&self, rollout: &str, command: Command) -> Result<(), String> {
        if command == Command::Approve {
            return Err("nothing waits".to_owned());
        }
        self.commands
            .borrow_mut()
            .push((rollout.to_owned(), command));
        Ok(())
    }
}

fn view() -> View {
    View {
        name: "fleet".to_owned(),
        version: "v0.2.0".to_owned(),
        image: "r/i:v0.2.0".to_owned(),
        phase: "rolling",
        why: String::new(),
        paused: None,
        ended: false,
        driven: true,
        approved: None,
        machines: Vec::new(),
    }
}

/// A visitor of a page.
struct Visitor {
    sender: client::SendRequest<Full<Bytes>>,
}

impl Visitor {
    /// Makes a request: its method, path, `authorization` and body.
    async fn asks(&mut self, request: (&str, &str, &str, &str)) -> Response<Incoming> {
        let (method, path, authorization, body) = request;
        let request = Request::builder().method(method).uri(path);
        let request = request
            .header("host", "page")
            .header(AUTHORIZATION, authorization);
        let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
        self.sender.ready().await.unwrap();
        self.sender
            .send_request(request.body(body).unwrap())
            .await
            .unwrap()
    }
}

/// Serves a page, and has a visitor with the key's header.
async fn with_visitor(told: Told, visit: impl AsyncFnOnce(Visitor, String)) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let key = Key::random().unwrap();
    let header = format!("Bearer {key}");
    let serving = serve(listener, key, told);
    let visiting = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) = client::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::task::spawn_local(connection);
        visit(Visitor { sender }, header).await;
    };
    let both = async {
        tokio::select! {
            () = serving => {}
            () = visiting => {}
        }
    };
    LocalSet::new().run_until(both).await;
}

async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn the_files_are_for_everybody_and_the_rest_needs_the_key() {
    with_visitor(Told::default(), async |mut visitor, key| {
        let page = visitor.asks(("GET", "/", "", "")).await;
        let policy = page.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        assert!(text(page).await.contains("<title>Rollouts</title>"));
        for (method, path) in [("GET", "/rollouts"), ("POST", "/commands"), ("GET", "/x")] {
            for wrong in ["", "Bearer ", &key[..key.len() - 1], &format!("{key}0")] {
                let answer = visitor.asks((method, path, wrong, "")).await;
                assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{path} {wrong}");
                text(answer).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn commands_are_carried_out_or_refused_with_the_reason() {
    let told = Told::default();
    let commands = told.commands.clone();
    with_visitor(told, async |mut visitor, key| {
        for (body, status, said) in [
            (r#"{"rollout": "fleet", "command": "pause"}"#, 200, "done"),
            (
                r#"{"rollout": "fleet", "command": "hold", "machine": "lamp-1"}"#,
                200,
                "done",
            ),
            (
                r#"{"rollout": "fleet", "command": "approve"}"#,
                409,
                "nothing waits",
            ),
            (
                r#"{"rollout": "fleet", "command": "explode"}"#,
                400,
                "that is no command",
            ),
            (
                r#"{"rollout": "fleet", "command": "pause", "more": 1}"#,
                400,
                "that is no command",
            ),
            (
                &" ".repeat(LARGEST_COMMAND + 1),
                400,
                "length limit exceeded",
            ),
        ] {
            let answer = visitor.asks(("POST", "/commands", &key, body)).await;
            assert_eq!(answer.status(), status, "{body}");
            let text = text(answer).await;
            assert!(text.contains(said), "{text}");
        }
    })
    .await;
    let why = "on the page".to_owned();
    let hold = Command::Hold(MachineName::from("lamp-1"), why.clone());
    let expected = [Command::Pause(why), hold].map(|it| ("fleet".to_owned(), it));
    assert_eq!(*commands.borrow(), expected);
}

#[tokio::test]
async fn a_change_is_shown_within_moments() {
    let told = Told::default();
    let views = told.views.clone();
    with_visitor(told, async |mut visitor, key| {
        let answer = visitor.asks(("GET", "/rollouts", &key, "")).await;
        let mut stream = answer.into_body();
        let mut line = async || {
            let frame = timeout(REQUEST, stream.frame()).await.unwrap();
            let bytes = frame.unwrap().unwrap().into_data().unwrap();
            serde_json::from_slice::<serde_json::Value>(&bytes).unwrap()
        };
        assert_eq!(line().await, serde_json::json!({ "rollouts": [] }));
        views.borrow_mut().push(view());
        let shown = line().await;
        assert_eq!(shown["rollouts"][0]["phase"], "rolling");
    })
    .await;
}
