//! Tests the link over a real socket, with the test in the place of init.

#![allow(clippy::unwrap_used, clippy::panic)]

use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);
const ID: &str = "2f6b1c3a-0d4e-4f5a-8b6c-7d8e9fa0b1c2";

/// init's end of the socket. The test decides which messages it reads and sends.
struct Init(OwnedFd);

impl Init {
    /// Returns a link that init has welcomed, and init's end. Both ends are non-blocking.
    async fn greeted() -> (InitLink, Init) {
        Self::greeted_with(None).await
    }

    /// The same for an init that waits for machined's end, within a limit.
    async fn greeted_with(finish: Option<u32>) -> (InitLink, Init) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        // As small as the kernel allows, so that it is full soon.
        set_socket_send_buffer_size(&ours, 1).unwrap();
        let init = Init(theirs);
        let greeting = async {
            assert_eq!(init.next_request().await, Request::Hello);
            init.say(&Reply::Welcome(Welcome {
                finish,
                ..Welcome::of_kernel(ID.parse().unwrap())
            }));
        };
        let (link, ()) = tokio::join!(InitLink::connect(ours), greeting);
        (link.unwrap().0, init)
    }

    fn request(&self) -> Option<Request> {
        let (packet, _) = receive(&self.0, RecvFlags::empty()).ok()?;
        Some(Request::parse(&packet).unwrap())
    }

    async fn next_request(&self) -> Request {
        loop {
            if let Some(request) = self.request() {
                return request;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn say(&self, reply: &Reply) {
        send(&self.0, &reply.encode(), &[], SendFlags::empty()).unwrap();
    }

    fn agree_to(&self, request: &Request) {
        let to = request.verb().parse().unwrap();
        self.say(&Reply::Ok { to });
    }

    fn tell_exit(&self, pid: i32, code: i32) {
        let status = code << 8;
        self.say(&Reply::Exited { pid, status });
    }
}

/// A caller that goes away before its request was sent has no place in the queue for answers.
#[tokio::test]
async fn who_has_not_asked_takes_nobodys_answer() {
    let (link, init) = Init::greeted().await;
    let callers: Vec<_> = (0..500)
        .map(|number| {
            let link = link.clone();
            tokio::spawn(async move { link.drop_kept(&format!("log.{number}")).await })
        })
        .collect();
    // Send until the socket is full.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    for caller in callers {
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
    }
    let mut asked = 0;
    while let Some(request) = init.request() {
        asked += 1;
        init.agree_to(&request);
        tokio::task::yield_now().await;
    }
    assert!((1..500).contains(&asked), "{asked} requests were sent");
    let answering = async {
        let request = init.next_request().await;
        init.agree_to(&request);
    };
    let asking = tokio::time::timeout(PATIENCE, link.give_up("it does not work"));
    let (answered, ()) = tokio::join!(asking, answering);
    answered.expect("another took the answer").unwrap();
}

/// A container that was left running has ended before the swap, when init told the previous machined.
#[tokio::test]
async fn an_exit_that_an_earlier_machined_was_told_of_is_not_lost() {
    let (link, init) = Init::greeted().await;
    // Another process has this number by now.
    init.tell_exit(71, 1);
    let told = async {
        while link.unclaimed_exit(71).is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, told).await.unwrap();
    link.note_earlier_exits(&[(70, Exit::Code(7)), (71, Exit::Signal(9))].into());
    assert_eq!(link.noted_exit(70).await, Exit::Code(7));
    assert_eq!(link.noted_exit(71).await, Exit::Code(1));
    assert_eq!(link.unclaimed_exit(70), None);
}

#[tokio::test]
async fn an_exit_is_of_the_process_that_lived_then() {
    let (link, init) = Init::greeted().await;
    let before = Instant::now();
    init.tell_exit(70, 1);
    init.tell_exit(71, 2);
    assert_eq!(link.exit_of(71, before).await, Exit::Code(2));
    // The exit of 70 was not fetched, and now another process has this PID.
    let since = Instant::now();
    let exit = link.exit_of(70, since);
    tokio::pin!(exit);
    let early = tokio::time::timeout(Duration::from_millis(50), &mut exit).await;
    assert!(early.is_err(), "{early:?}");
    init.tell_exit(70, 3);
    assert_eq!(exit.await, Exit::Code(3));
}

/// init collects the ends of containers while generations change, and reports them before anybody watches the containers, or a moment later.
#[tokio::test]
async fn an_exit_of_before_the_watch_is_noted_and_told_once() {
    let (link, init) = Init::greeted().await;
    let early = tokio::time::timeout(Duration::from_millis(50), link.noted_exit(70)).await;
    assert!(early.is_err(), "{early:?}");
    init.tell_exit(70, 3);
    let noted = tokio::time::timeout(PATIENCE, link.noted_exit(70)).await;
    assert_eq!(noted.unwrap(), Exit::Code(3));
    let again = tokio::time::timeout(Duration::from_millis(50), link.noted_exit(70)).await;
    assert!(again.is_err(), "{again:?}");
}

#[tokio::test]
async fn the_oldest_exit_is_forgotten_first() {
    let (link, init) = Init::greeted().await;
    let since = Instant::now();
    // PIDs count down here, as if they had wrapped around: the newest exit has the smallest.
    let exits = i32::try_from(EXITS).unwrap();
    for pid in (1..=exits + 1).rev() {
        init.tell_exit(1000 + pid, 0);
        tokio::task::yield_now().await;
    }
    let newest = link.exit_of(1001, since);
    let newest = tokio::time::timeout(PATIENCE, newest).await;
    assert_eq!(newest.unwrap(), Exit::Code(0));
    let known = link.shared.exits.borrow().clone();
    let oldest = 1000 + u32::try_from(exits).unwrap() + 1;
    assert!(!known.contains_key(&oldest) && known.contains_key(&(oldest - 1)));
}

fn next<'a>(memfd: &'a impl AsFd, blake3: &'a blake3::Hash) -> Next<'a> {
    Next {
        memfd: memfd.as_fd(),
        blake3,
        version: "v2",
        deadline: Duration::from_secs(60),
        workloads: Workloads::Keep,
        finish: Duration::from_secs(4),
    }
}

/// No caller waits while init verifies an image; but an init that ends machined with its answer is asked after the last work.
#[tokio::test]
async fn the_last_work_is_done_as_late_as_init_allows() {
    let digest = blake3::hash(b"image");
    let memfd = std::fs::File::open("/dev/null").unwrap();
    // A link whose other end is gone ends the process.
    let mut links = Vec::new();
    for (limit, finish, first) in [
        (None, 0, "work"),
        (Some(1), 1, "init"),
        (Some(9), 4, "init"),
    ] {
        let (link, init) = Init::greeted_with(limit).await;
        let order = Mutex::new(Vec::new());
        let next = next(&memfd, &digest);
        let taking = async {
            let request = init.next_request().await;
            order.locked().push("init");
            init.agree_to(&request);
            request
        };
        let last = async { order.locked().push("work") };
        let (taken, request) = tokio::join!(link.next(next, last), taking);
        taken.unwrap();
        let Request::Next(asked) = request else {
            panic!("{request:?}");
        };
        assert_eq!(asked.finish, finish, "{limit:?}");
        assert_eq!(order.locked()[0], first, "{limit:?}");
        links.push((link, init));
    }
}

/// An image that init refuses costs no answer.
#[tokio::test]
async fn callers_are_answered_when_init_refuses_the_image() {
    let (link, init) = Init::greeted_with(Some(5)).await;
    let digest = blake3::hash(b"image");
    let memfd = std::fs::File::open("/dev/null").unwrap();
    let next = next(&memfd, &digest);
    let refusing = async {
        let line = |text: &str| text.parse().unwrap();
        let to = line(init.next_request().await.verb());
        let (code, text) = (line("wrong-digest"), line("it hashes to 00"));
        init.say(&Reply::Error { to, code, text });
    };
    let last = async { panic!("the API ended") };
    let (taken, ()) = tokio::join!(link.next(next, last), refusing);
    let error = format!("{:#}", taken.unwrap_err());
    assert_eq!(error, "init refused next (wrong-digest): it hashes to 00");
}
