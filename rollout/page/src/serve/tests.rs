#![allow(clippy::unwrap_used)]
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use hyper::client::conn::http1 as client;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::*;
use crate::{Key, View};

/// The pause between two looks of the test's views.
const LOOK: Duration = Duration::from_millis(20);

/// Rollouts that a test changes.
#[derive(Clone, Default)]
struct Told {
    views: Rc<RefCell<Vec<View>>>,
    commands: Rc<RefCell<Vec<(String, Command)>>>,
    /// Whether nobody may look.
    is_closed: Rc<Cell<bool>>,
}

/// Rollouts behind a key.
struct Locked {
    key: Key,
    told: Told,
}

impl Rollouts for Locked {
    type Visitor = Told;

    fn enter(&self, token: &str) -> Result<Told, Denied> {
        match self.key.opens(token) {
            true => Ok(self.told.clone()),
            false => Err(Denied::Unknown("that is not the key".to_owned())),
        }
    }
}

impl Visitor for Told {
    type Views = Told;

    async fn watch(&self) -> Result<Told, Denied> {
        match self.is_closed.get() {
            true => Err(Denied::Forbidden("not today".to_owned())),
            false => Ok(self.clone()),
        }
    }

    async fn command(&self, rollout: &str, command: Command) -> Result<(), Denied> {
        if command == Command::Approve(None) {
            return Err(Denied::Impossible("nothing waits".to_owned()));
        }
        self.commands
            .borrow_mut()
            .push((rollout.to_owned(), command));
        Ok(())
    }
}

impl Views for Told {
    async fn next(&mut self) -> Result<Vec<View>, String> {
        sleep(LOOK).await;
        Ok(self.views.borrow().clone())
    }
}

fn view() -> View {
    View {
        name: "fleet".to_owned(),
        pool: String::new(),
        version: "v0.2.0".to_owned(),
        image: "r/i:v0.2.0".to_owned(),
        phase: "rolling",
        why: String::new(),
        paused: None,
        ended: false,
        holds: true,
        driven: true,
        approved: None,
        machines: Vec::new(),
    }
}

/// A program that visits a page.
struct Caller {
    sender: client::SendRequest<Full<Bytes>>,
}

impl Caller {
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
async fn with_visitor(told: Told, visit: impl AsyncFnOnce(Caller, String)) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let key = Key::random().unwrap();
    let header = format!("Bearer {key}");
    let serving = serve(listener, Locked { key, told });
    let visiting = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) = client::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::task::spawn_local(connection);
        visit(Caller { sender }, header).await;
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
            (r#"{"rollout": "fleet", "command": "retry"}"#, 200, "done"),
            (
                r#"{"rollout": "fleet", "command": "approve", "machine": "", "wave": 2}"#,
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
    let approve = Command::Approve(Some(2));
    let expected = [Command::Pause(why), hold, Command::Retry, approve];
    let expected = expected.map(|it| ("fleet".to_owned(), it));
    assert_eq!(*commands.borrow(), expected);
}

#[tokio::test]
async fn who_may_not_look_is_told_so() {
    let told = Told::default();
    told.is_closed.set(true);
    with_visitor(told, async |mut visitor, key| {
        let answer = visitor.asks(("GET", "/rollouts", &key, "")).await;
        assert_eq!(answer.status(), StatusCode::FORBIDDEN);
        assert_eq!(text(answer).await, "not today");
    })
    .await;
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
