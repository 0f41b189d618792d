//! Tests streams and listeners, on both engines.

mod support;

use farblock_random::Random;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use farblock_reactor::{Buffer, Event, SendBatch, StreamId};
use support::{Loop, WAIT_LIMIT, local_listener, socket_pair, tcp_pair};

on_both_engines! {
    an_echo_with_random_splits_is_complete
    a_large_batch_reaches_a_slow_reader
    an_empty_batch_is_sent_at_once
    receive_into_fills_exact_ranges
    receive_into_is_short_at_the_end
    receive_into_resumes_after_pauses
    the_end_of_a_stream_is_an_empty_buffer
    a_reset_is_an_error
    a_connected_client_and_server_exchange_data
    a_refused_connect_is_reported
    closing_a_stream_ends_its_connect
    operations_before_the_connection_fail
    close_returns_pending_buffers
    an_idle_stream_closes_once
    calls_after_close_do_nothing
    sent_bytes_survive_close
    send_final_sends_without_a_poll
    two_streams_do_not_disturb_each_other
    many_streams_exchange_data
    many_idle_streams_receive_a_burst
    nodelay_is_set
    a_closed_listener_accepts_no_connections
    a_removed_task_gets_no_events
    a_loop_can_be_dropped_with_streams_in_use
    a_stream_moves_between_engines
    a_stream_is_taken_only_if_no_operation_is_outstanding
    a_second_receive_panics
    a_second_send_panics
}

on_the_simulated_engine! {
    an_echo_with_random_splits_is_complete
    an_empty_batch_is_sent_at_once
    receive_into_is_short_at_the_end
    the_end_of_a_stream_is_an_empty_buffer
    close_returns_pending_buffers
    an_idle_stream_closes_once
    calls_after_close_do_nothing
    sent_bytes_survive_close
    send_final_sends_without_a_poll
    two_streams_do_not_disturb_each_other
    a_removed_task_gets_no_events
    a_stream_is_taken_only_if_no_operation_is_outstanding
    a_second_receive_panics
    a_second_send_panics
}

fn bytes(content: &[u8]) -> SendBatch {
    let mut batch = SendBatch::new();
    batch.bytes(content);
    batch
}

fn received(event: Event) -> Buffer {
    match event {
        Event::Received { result: Ok(buffer), .. } => buffer,
        other => panic!("the loop reported another event instead of received bytes: {other:?}"),
    }
}

/// Receives until `length` bytes have arrived, because the network may split them anywhere. A
/// receive must already be outstanding.
fn received_whole(event_loop: &mut Loop, stream: StreamId, length: usize) -> Vec<u8> {
    let mut whole = received(event_loop.next()).to_vec();
    while whole.len() < length {
        event_loop.reactor.recv(stream);
        let more = received(event_loop.next());
        assert!(!more.is_empty(), "the stream ends after {} bytes of {length}", whole.len());
        whole.extend_from_slice(&more);
    }
    whole
}

/// Creates a batch with the content in random pieces, as bytes and as payloads.
fn random_batch(random: &mut Random, content: &[u8]) -> SendBatch {
    let mut batch = SendBatch::new();
    let mut rest = content;
    let mut tag = 0;
    while !rest.is_empty() {
        let at = 1 + random.index(rest.len().min(3000));
        let (piece, tail) = rest.split_at(at);
        match random.index(3) {
            0 => batch.bytes(piece),
            1 => {
                let mut buffer = Buffer::new(at + 10);
                buffer[5..5 + at].copy_from_slice(piece);
                batch.payload(tag, buffer, 5..5 + at);
                tag += 1;
            }
            _ => {
                let index = batch.payload(tag, Buffer::copy_of(piece), 0..at / 2);
                batch.payload_again(index, at / 2..at);
                tag += 1;
            }
        }
        rest = tail;
    }
    batch
}

fn an_echo_with_random_splits_is_complete(mut event_loop: Loop) {
    let mut random = Random::new(42);
    let reactor = event_loop.reactor.clone();
    let (client, server) = event_loop.stream_pair();
    for round in 0..50 {
        let mut content = vec![0; 1 + random.index(100_000)];
        random.fill(&mut content);
        reactor.send(client, random_batch(&mut random, &content));
        reactor.recv(client);
        reactor.recv(server);
        let (mut echoed, mut unsent) = (Vec::new(), Vec::new());
        let (mut client_sent, mut server_sending) = (false, false);
        while echoed.len() < content.len() || !client_sent || server_sending {
            match event_loop.next() {
                Event::Sent { stream, mut batch, result } => {
                    result.unwrap();
                    if stream == server {
                        server_sending = false;
                    } else {
                        client_sent = true;
                        let tags: Vec<u64> = batch.take_payloads().map(|(tag, _)| tag).collect();
                        assert!(tags.is_sorted());
                    }
                }
                Event::Received { stream, result } => {
                    let buffer = result.unwrap();
                    assert!(!buffer.is_empty());
                    if stream == server {
                        unsent.extend_from_slice(&buffer);
                        reactor.recv(server);
                    } else {
                        echoed.extend_from_slice(&buffer);
                        if echoed.len() < content.len() {
                            reactor.recv(client);
                        }
                    }
                    reactor.buffers().give(buffer);
                }
                other => panic!("{other:?}"),
            }
            if !server_sending && !unsent.is_empty() {
                reactor.send(server, random_batch(&mut random, &unsent));
                unsent.clear();
                server_sending = true;
            }
        }
        assert!(echoed == content, "the echoed data differs in round {round} of seed 42");
        // The server's receive is still outstanding. One more byte completes it.
        reactor.send(client, bytes(b"."));
        for _ in 0..2 {
            match event_loop.next() {
                Event::Sent { result, .. } => result.unwrap(),
                event => assert_eq!(&received(event)[..], b"."),
            }
        }
    }
}

fn a_large_batch_reaches_a_slow_reader(mut event_loop: Loop) {
    const PIECES: usize = 3001;
    const PIECE_BYTES: usize = 2048;
    let (stream, mut socket) = event_loop.stream_and_socket();
    let mut random = Random::new(7);
    let mut content = vec![0; PIECES * PIECE_BYTES];
    random.fill(&mut content);
    let mut batch = SendBatch::new();
    let big = batch.payload(9, Buffer::copy_of(&content), 0..0);
    for (index, piece) in content.chunks(PIECE_BYTES).enumerate() {
        if index % 2 == 0 {
            batch.payload_again(big, index * PIECE_BYTES..(index + 1) * PIECE_BYTES);
        } else {
            batch.bytes(piece);
        }
    }
    assert!(batch.segment_count() > 1024 && batch.len() > 4 << 20);
    event_loop.reactor.send(stream, batch);
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        let mut chunk = vec![0; 100_000];
        while all.len() < PIECES * PIECE_BYTES {
            std::thread::sleep(Duration::from_millis(1));
            let count = socket.read(&mut chunk).unwrap();
            assert!(count > 0);
            all.extend_from_slice(&chunk[..count]);
        }
        all
    });
    match event_loop.next() {
        Event::Sent { mut batch, result: Ok(()), .. } => {
            assert_eq!(batch.len(), content.len());
            let (tag, buffer) = batch.take_payloads().next().unwrap();
            assert_eq!((tag, buffer.len()), (9, content.len()));
        }
        other => panic!("{other:?}"),
    }
    assert!(reader.join().unwrap() == content);
}

fn an_empty_batch_is_sent_at_once(mut event_loop: Loop) {
    let (stream, _socket) = event_loop.stream_and_socket();
    let mut batch = SendBatch::new();
    batch.payload(1, Buffer::new(10), 3..3);
    event_loop.reactor.send(stream, batch);
    match event_loop.next() {
        Event::Sent { mut batch, result: Ok(()), .. } => {
            assert_eq!(batch.take_payloads().count(), 1);
        }
        other => panic!("{other:?}"),
    }
}

fn receive_into_fills_exact_ranges(mut event_loop: Loop) {
    let reactor = event_loop.reactor.clone();
    let (stream, mut socket) = event_loop.stream_and_socket();
    let mut content = vec![0; 300_000];
    Random::new(3).fill(&mut content);
    let copy = content.clone();
    let writer = std::thread::spawn(move || {
        for chunk in copy.chunks(12_345) {
            socket.write_all(chunk).unwrap();
        }
        socket
    });
    let mut position = 0;
    for (len, start) in [(1, 0), (4096, 17), (100_000, 0), (150_000, 1000), (45_903, 4096)] {
        let mut buffer = reactor.buffers().take(start + len + 100);
        buffer.fill(0xa5);
        reactor.recv_into(stream, buffer, start..start + len);
        let mut done = 0;
        while done < len {
            match event_loop.next() {
                Event::ReceivedInto { buffer, result, .. } => {
                    done += result.unwrap();
                    assert!(buffer[..start].iter().all(|&byte| byte == 0xa5));
                    assert!(buffer[start + done..].iter().all(|&byte| byte == 0xa5));
                    assert!(buffer[start..start + done] == content[position..position + done]);
                    if done < len {
                        reactor.recv_into(stream, buffer, start + done..start + len);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        position += len;
    }
    assert_eq!(position, content.len());
    drop(writer.join().unwrap());
}

fn receive_into_is_short_at_the_end(mut event_loop: Loop) {
    let (stream, mut socket) = event_loop.stream_and_socket();
    event_loop.reactor.recv_into(stream, Buffer::new(100), 10..90);
    socket.write_all(b"short").unwrap();
    drop(socket);
    match event_loop.next() {
        Event::ReceivedInto { buffer, result: Ok(5), .. } => assert_eq!(&buffer[10..15], b"short"),
        other => panic!("{other:?}"),
    }
    event_loop.reactor.recv_into(stream, Buffer::new(100), 10..90);
    let event = event_loop.next();
    assert!(matches!(event, Event::ReceivedInto { result: Ok(0), .. }), "{event:?}");
}

fn receive_into_resumes_after_pauses(mut event_loop: Loop) {
    let (stream, mut socket) = event_loop.stream_and_socket();
    event_loop.reactor.recv_into(stream, Buffer::new(9), 0..9);
    let writer = std::thread::spawn(move || {
        for piece in [b"abc", b"def", b"ghi"] {
            std::thread::sleep(Duration::from_millis(20));
            socket.write_all(piece).unwrap();
        }
        socket
    });
    match event_loop.next() {
        Event::ReceivedInto { buffer, result: Ok(9), .. } => assert_eq!(&buffer[..], b"abcdefghi"),
        other => panic!("{other:?}"),
    }
    drop(writer.join());
}

fn the_end_of_a_stream_is_an_empty_buffer(mut event_loop: Loop) {
    let (stream, mut socket) = event_loop.stream_and_socket();
    socket.write_all(b"last words").unwrap();
    drop(socket);
    event_loop.reactor.recv(stream);
    assert_eq!(received_whole(&mut event_loop, stream, 10), b"last words");
    for _ in 0..3 {
        event_loop.reactor.recv(stream);
        assert!(received(event_loop.next()).is_empty());
    }
}

fn a_reset_is_an_error(mut event_loop: Loop) {
    let (stream, socket) = event_loop.stream_and_socket();
    event_loop.reactor.recv(stream);
    assert!(event_loop.next_within(Duration::from_millis(5)).is_none());
    // Closing a socket with unread bytes resets the connection.
    event_loop.reactor.send(stream, bytes(b"unread"));
    assert!(matches!(event_loop.next(), Event::Sent { result: Ok(()), .. }));
    drop(socket);
    match event_loop.next() {
        Event::Received { result: Err(error), .. } => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        // Wine reads and so clears the socket's error while it waits for data. The receive may then
        // report the end of the stream instead.
        Event::Received { result: Ok(buffer), .. } if cfg!(windows) => assert!(buffer.is_empty()),
        other => panic!("{other:?}"),
    }
    event_loop.reactor.send(stream, bytes(b"anybody there?"));
    let event = event_loop.next();
    assert!(matches!(event, Event::Sent { result: Err(_), .. }), "{event:?}");
}

fn a_connected_client_and_server_exchange_data(mut event_loop: Loop) {
    let reactor = event_loop.reactor.clone();
    let socket = local_listener();
    let address = socket.local_addr().unwrap();
    let listener = reactor.listen(event_loop.task, socket).unwrap();
    let client = reactor.connect(event_loop.task, address).unwrap();
    let (mut connected, mut server) = (false, None);
    while !connected || server.is_none() {
        match event_loop.next() {
            Event::Connected { stream, result } => {
                assert_eq!(stream, client);
                result.unwrap();
                connected = true;
            }
            Event::Accepted { listener: on, result } => {
                assert_eq!(on, listener);
                let (socket, peer) = result.unwrap();
                assert_eq!(socket.peer_addr().unwrap(), peer);
                server = Some(reactor.add_stream(event_loop.task, socket).unwrap());
            }
            other => panic!("{other:?}"),
        }
    }
    reactor.send(client, bytes(b"hello"));
    reactor.recv(server.unwrap());
    for _ in 0..2 {
        match event_loop.next() {
            Event::Sent { stream, result, .. } => {
                assert_eq!(stream, client);
                result.unwrap();
            }
            event => assert_eq!(&received(event)[..], b"hello"),
        }
    }
}

fn a_refused_connect_is_reported(mut event_loop: Loop) {
    let address = local_listener().local_addr().unwrap();
    let stream = event_loop.reactor.connect(event_loop.task, address).unwrap();
    match event_loop.next() {
        Event::Connected { result: Err(error), .. } => {
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
        other => panic!("{other:?}"),
    }
    event_loop.reactor.recv(stream);
    match event_loop.next() {
        Event::Received { result: Err(error), .. } => {
            assert_eq!(error.kind(), ErrorKind::NotConnected);
        }
        other => panic!("{other:?}"),
    }
    event_loop.reactor.close(stream);
    assert!(matches!(event_loop.next(), Event::Closed { stream: closed } if closed == stream));
}

fn closing_a_stream_ends_its_connect(mut event_loop: Loop) {
    // No host answers at this address (RFC 5737). Without a route to it, connecting fails at once.
    let address = "192.0.2.1:4420".parse().unwrap();
    let Ok(stream) = event_loop.reactor.connect(event_loop.task, address) else { return };
    event_loop.reactor.close(stream);
    let event = event_loop.next();
    assert!(matches!(event, Event::Connected { result: Err(_), .. }), "{event:?}");
    assert!(matches!(event_loop.next(), Event::Closed { .. }));
}

fn operations_before_the_connection_fail(mut event_loop: Loop) {
    let reactor = event_loop.reactor.clone();
    let socket = local_listener();
    let stream = reactor.connect(event_loop.task, socket.local_addr().unwrap()).unwrap();
    reactor.recv(stream);
    reactor.recv_into(stream, Buffer::new(5), 0..5);
    reactor.send(stream, bytes(b"early"));
    let mut failures = 0;
    loop {
        let error = match event_loop.next() {
            Event::Connected { result, .. } => {
                result.unwrap();
                break;
            }
            Event::Received { result, .. } => result.unwrap_err(),
            Event::ReceivedInto { result, .. } => result.unwrap_err(),
            Event::Sent { result, .. } => result.unwrap_err(),
            other => panic!("{other:?}"),
        };
        assert_eq!(error.kind(), ErrorKind::NotConnected);
        failures += 1;
    }
    assert_eq!(failures, 3);
}

fn close_returns_pending_buffers(mut event_loop: Loop) {
    let reactor = event_loop.reactor.clone();
    for is_submitted in [true, false] {
        let (stream, socket) = event_loop.stream_and_socket();
        let mut batch = SendBatch::new();
        // This payload is larger than the socket buffers.
        batch.payload(5, Buffer::new(64 << 20), 0..64 << 20);
        reactor.send(stream, batch);
        reactor.recv_into(stream, Buffer::new(1234), 0..1234);
        if is_submitted {
            assert!(event_loop.next_within(Duration::from_millis(20)).is_none());
        }
        reactor.close(stream);
        let (mut got_buffer, mut got_batch) = (false, false);
        loop {
            match event_loop.next() {
                Event::ReceivedInto { buffer, result, .. } => {
                    assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionAborted);
                    assert_eq!(buffer.len(), 1234);
                    got_buffer = true;
                }
                Event::Sent { mut batch, result, .. } => {
                    assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionAborted);
                    let (tag, buffer) = batch.take_payloads().next().unwrap();
                    assert_eq!((tag, buffer.len()), (5, 64 << 20));
                    got_batch = true;
                }
                Event::Closed { stream: closed } => {
                    assert_eq!(closed, stream);
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(got_buffer && got_batch);
        drop(socket);
    }
    let (stream, _socket) = event_loop.stream_and_socket();
    reactor.recv(stream);
    assert!(event_loop.next_within(Duration::from_millis(5)).is_none());
    reactor.close(stream);
    match event_loop.next() {
        Event::Received { result: Err(error), .. } => {
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(event_loop.next(), Event::Closed { .. }));
}

fn an_idle_stream_closes_once(mut event_loop: Loop) {
    let (stream, mut socket) = event_loop.stream_and_socket();
    event_loop.reactor.close(stream);
    event_loop.reactor.close(stream);
    assert!(matches!(event_loop.next(), Event::Closed { .. }));
    assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    assert!(event_loop.next_within(Duration::from_millis(5)).is_none());
}

fn calls_after_close_do_nothing(mut event_loop: Loop) {
    let reactor = event_loop.reactor.clone();
    let (stream, _socket) = event_loop.stream_and_socket();
    reactor.recv(stream);
    assert!(event_loop.next_within(Duration::from_millis(5)).is_none());
    let abuse = || {
        reactor.recv(stream);
        reactor.recv_into(stream, Buffer::new(5), 0..5);
        reactor.send(stream, bytes(b"late"));
        reactor.close(stream);
    };
    reactor.close(stream);
    abuse();
    assert!(matches!(event_loop.next(), Event::Received { result: Err(_), .. }));
    assert!(matches!(event_loop.next(), Event::Closed { .. }));
    // The next stream gets the same slot. Closing the old one must not affect it.
    let (_next, _other) = event_loop.stream_and_socket();
    abuse();
    assert!(event_loop.next_within(Duration::from_millis(20)).is_none());
}

fn sent_bytes_survive_close(mut event_loop: Loop) {
    let (stream, mut socket) = event_loop.stream_and_socket();
    event_loop.reactor.send(stream, bytes(&[7; 50_000]));
    assert!(matches!(event_loop.next(), Event::Sent { result: Ok(()), .. }));
    event_loop.reactor.close(stream);
    assert!(matches!(event_loop.next(), Event::Closed { .. }));
    let mut all = Vec::new();
    socket.read_to_end(&mut all).unwrap();
    assert!(all == [7; 50_000]);
}

fn two_streams_do_not_disturb_each_other(mut event_loop: Loop) {
    let (stuck, _full) = event_loop.stream_and_socket();
    let (stream, mut socket) = event_loop.stream_and_socket();
    let reactor = event_loop.reactor.clone();
    reactor.send(stuck, bytes(&vec![1; 32 << 20]));
    reactor.recv(stuck);
    for _ in 0..100 {
        reactor.send(stream, bytes(b"ping"));
        assert!(matches!(event_loop.next(), Event::Sent { stream: sent, .. } if sent == stream));
        let mut ping = [0; 4];
        socket.read_exact(&mut ping).unwrap();
    }
}

fn many_streams_exchange_data(mut event_loop: Loop) {
    const STREAMS: usize = 500;
    const ROUNDS: usize = 20;
    let reactor = event_loop.reactor.clone();
    let pairs: Vec<_> = (0..STREAMS).map(|_| event_loop.stream_pair()).collect();
    let message = |stream: usize, round: usize| format!("stream {stream} round {round}");
    let place = |id: StreamId| pairs.iter().position(|&(a, b)| a == id || b == id).unwrap();
    for (a, b) in &pairs {
        reactor.recv(*a);
        reactor.recv(*b);
    }
    for (index, (a, _)) in pairs.iter().enumerate() {
        reactor.send(*a, bytes(message(index, 0).as_bytes()));
    }
    let mut rounds = [0; STREAMS];
    let mut finished = 0;
    while finished < STREAMS {
        match event_loop.next() {
            Event::Sent { result, .. } => result.unwrap(),
            Event::Received { stream, result } => {
                let buffer = result.unwrap();
                let index = place(stream);
                assert_eq!(&buffer[..], message(index, rounds[index]).as_bytes());
                reactor.buffers().give(buffer);
                rounds[index] += 1;
                if rounds[index] == ROUNDS {
                    finished += 1;
                } else {
                    reactor.send(stream, bytes(message(index, rounds[index]).as_bytes()));
                    reactor.recv(stream);
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn many_idle_streams_receive_a_burst(mut event_loop: Loop) {
    const STREAMS: usize = 300;
    let reactor = event_loop.reactor.clone();
    let mut sockets: Vec<_> = (0..STREAMS).map(|_| event_loop.stream_and_socket()).collect();
    sockets.iter().for_each(|(stream, _)| reactor.recv(*stream));
    assert!(event_loop.next_within(Duration::from_millis(20)).is_none());
    for round in 0..3u8 {
        for (index, (_, socket)) in sockets.iter_mut().enumerate() {
            socket.write_all(&[round, index as u8, (index >> 8) as u8]).unwrap();
        }
        let mut kept = Vec::new();
        for _ in 0..STREAMS {
            let event = event_loop.next();
            let Event::Received { stream, result: Ok(buffer) } = event else { panic!("{event:?}") };
            let index = sockets.iter().position(|(id, _)| *id == stream).unwrap();
            assert_eq!(&buffer[..], [round, index as u8, (index >> 8) as u8]);
            // Keep the received buffers. The other streams must still get buffers.
            kept.push(buffer);
            reactor.recv(stream);
        }
    }
}

fn nodelay_is_set(event_loop: Loop) {
    let (a, _b) = tcp_pair();
    let view = a.try_clone().unwrap();
    assert!(!view.nodelay().unwrap());
    event_loop.reactor.add_stream(event_loop.task, a).unwrap();
    assert!(view.nodelay().unwrap());
}

fn a_closed_listener_accepts_no_connections(mut event_loop: Loop) {
    let socket = local_listener();
    let address = socket.local_addr().unwrap();
    let listener = event_loop.reactor.listen(event_loop.task, socket).unwrap();
    let _first = std::net::TcpStream::connect(address).unwrap();
    assert!(matches!(event_loop.next(), Event::Accepted { result: Ok(_), .. }));
    event_loop.reactor.close_listener(listener);
    event_loop.reactor.close_listener(listener);
    assert!(event_loop.next_within(Duration::from_millis(20)).is_none());
    assert!(std::net::TcpStream::connect(address).is_err());
}

fn a_removed_task_gets_no_events(mut event_loop: Loop) {
    let reactor = event_loop.reactor.clone();
    let (a, mut b) = socket_pair();
    let other = reactor.add_task();
    let stream = reactor.add_stream(other, a).unwrap();
    reactor.recv(stream);
    assert!(event_loop.next_within(Duration::from_millis(5)).is_none());
    reactor.remove_task(other);
    b.write_all(b"to nobody").unwrap();
    assert!(event_loop.next_within(Duration::from_millis(20)).is_none());
    let mut events = Vec::new();
    reactor.take_events(other, &mut events);
    assert!(events.is_empty());
    reactor.close(stream);
    assert!(event_loop.next_within(Duration::from_millis(5)).is_none());
    assert_eq!(b.read(&mut [0]).map_err(|error| error.kind()).unwrap_or(0), 0);
}

fn a_loop_can_be_dropped_with_streams_in_use(mut event_loop: Loop) {
    let reactor = event_loop.reactor.clone();
    let socket = local_listener();
    let address = socket.local_addr().unwrap();
    reactor.listen(event_loop.task, socket).unwrap();
    let mut peers = Vec::new();
    for index in 0..20 {
        let (stream, peer) = event_loop.stream_and_socket();
        peers.push(peer);
        reactor.send(stream, bytes(&vec![1; 8 << 20]));
        if index % 2 == 0 {
            reactor.recv(stream);
        } else {
            reactor.recv_into(stream, Buffer::new(100_000), 0..100_000);
        }
    }
    assert!(event_loop.next_within(Duration::from_millis(20)).is_none());
    // Also start operations that the engine has not submitted at the drop, or whose events no task
    // has taken.
    let (unsubmitted, peer) = event_loop.stream_and_socket();
    peers.push(peer);
    reactor.recv(unsubmitted);
    reactor.connect(event_loop.task, address).unwrap();
    let _accepted = std::net::TcpStream::connect(address).unwrap();
    peers.iter_mut().for_each(|peer| peer.write_all(b"too late").unwrap());
    drop(reactor);
    drop(event_loop);
    for mut peer in peers {
        peer.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        // The loop closed all streams: the peer reads the end, or a reset because of unread bytes.
        while !matches!(peer.read(&mut [0; 4096]), Ok(0) | Err(_)) {}
    }
}

/// One engine makes the socket non-blocking. The other engine must still be able to use it.
fn a_stream_moves_between_engines(mut event_loop: Loop) {
    let mut other = Loop::portable();
    let socket = local_listener();
    let address = socket.local_addr().unwrap();
    other.reactor.listen(other.task, socket).unwrap();
    let mut client = std::net::TcpStream::connect(address).unwrap();
    let Event::Accepted { result: Ok((socket, _)), .. } = other.next() else { panic!() };
    let stream = event_loop.reactor.add_stream(event_loop.task, socket).unwrap();
    event_loop.reactor.recv(stream);
    assert!(event_loop.next_within(Duration::from_millis(5)).is_none());
    client.write_all(b"moved").unwrap();
    assert_eq!(received_whole(&mut event_loop, stream, 5), b"moved");
}

/// After the stream is taken, its bytes go to the next loop, and the previous loop gets no more
/// events.
fn a_stream_is_taken_only_if_no_operation_is_outstanding(mut event_loop: Loop) {
    let reactor = event_loop.reactor.clone();
    let (stream, mut peer) = event_loop.stream_and_socket();
    reactor.recv(stream);
    assert!(reactor.take_stream(stream).is_none(), "a stream was taken during a receive");
    peer.write_all(b"first").unwrap();
    assert_eq!(received_whole(&mut event_loop, stream, 5), b"first");
    reactor.send(stream, bytes(b"answer"));
    assert!(reactor.take_stream(stream).is_none(), "a stream was taken during a send");
    assert!(matches!(event_loop.next(), Event::Sent { result: Ok(()), .. }));
    peer.write_all(b"second").unwrap();
    let socket = reactor.take_stream(stream).expect("no operation is outstanding");
    assert!(reactor.take_stream(stream).is_none(), "a stream was taken twice");
    reactor.recv(stream);
    reactor.close(stream);
    assert!(event_loop.next_within(Duration::from_millis(5)).is_none());
    let again = reactor.add_stream(event_loop.task, socket).unwrap();
    reactor.recv(again);
    assert_eq!(received_whole(&mut event_loop, again, 6), b"second");
    let mut answer = [0; 6];
    peer.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"answer");
}

fn panics(call: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
}

fn a_second_receive_panics(mut event_loop: Loop) {
    let reactor = event_loop.reactor.clone();
    let (stream, mut socket) = event_loop.stream_and_socket();
    reactor.recv(stream);
    assert!(panics(|| reactor.recv(stream)));
    assert!(panics(|| reactor.recv_into(stream, Buffer::new(10), 0..10)));
    assert!(panics(|| reactor.recv_into(stream, Buffer::new(10), 5..5)));
    assert!(panics(|| reactor.recv_into(stream, Buffer::new(10), 5..11)));
    // The calls above have failed. They must not affect the first stream.
    socket.write_all(b"first").unwrap();
    assert_eq!(received_whole(&mut event_loop, stream, 5), b"first");
}

fn a_second_send_panics(mut event_loop: Loop) {
    let reactor = event_loop.reactor.clone();
    let (stream, _socket) = event_loop.stream_and_socket();
    reactor.send(stream, bytes(b"first"));
    assert!(panics(|| reactor.send(stream, bytes(b"second"))));
    assert!(matches!(event_loop.next(), Event::Sent { result: Ok(()), .. }));
}

#[test]
fn types_that_cross_threads_are_send() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<Buffer>();
    is_send::<SendBatch>();
    is_send::<Event>();
    is_send::<farblock_reactor::Waker>();
    is_sync::<farblock_reactor::Waker>();
}

/// The bytes are sent without another poll, but never in the middle of another send.
fn send_final_sends_without_a_poll(mut event_loop: Loop) {
    let reactor = event_loop.reactor.clone();
    let (stream, mut socket) = event_loop.stream_and_socket();
    reactor.recv(stream);
    assert!(event_loop.next_within(Duration::from_millis(5)).is_none());
    reactor.send_final(stream, b"last");
    let mut words = [0; 4];
    socket.read_exact(&mut words).unwrap();
    assert_eq!(&words, b"last");
    reactor.close(stream);
    reactor.send_final(stream, b"late");
    assert!(matches!(event_loop.next(), Event::Received { result: Err(_), .. }));
    assert!(matches!(event_loop.next(), Event::Closed { .. }));
    assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    let (stream, mut socket) = event_loop.stream_and_socket();
    reactor.send(stream, bytes(&vec![7; 64 << 20]));
    assert!(event_loop.next_within(Duration::from_millis(5)).is_none());
    reactor.send_final(stream, b"last");
    reactor.close(stream);
    assert!(matches!(event_loop.next(), Event::Sent { result: Err(_), .. }));
    assert!(matches!(event_loop.next(), Event::Closed { .. }));
    let mut all = Vec::new();
    socket.read_to_end(&mut all).unwrap();
    assert!(all.iter().all(|&byte| byte == 7));
}
