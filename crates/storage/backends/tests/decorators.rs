//! Tests of the effects of decorators: delays, faults and limits.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use farblock_backends::delay::Delay;
use farblock_backends::fault::{Fault, Rule, When};
use farblock_backends::limit::Limit;
use farblock_backends::mem::Mem;
use farblock_block::conformance::Driver;
use farblock_block::{BlockError, Command, Namespace, Op};
use farblock_reactor::{Buffer, EngineKind};
use support::on_both_engines;

fn mem() -> Arc<dyn Namespace> {
    Arc::new(Mem::new(512, 16 << 20).unwrap())
}

fn read(lba: u64, blocks: u32, token: u64) -> Op {
    Op::read(lba, blocks, Buffer::new(blocks as usize * 512), token)
}

fn outcomes(driver: &mut Driver, ops: impl Iterator<Item = Op>) -> Vec<Result<(), BlockError>> {
    ops.map(|op| driver.run(0, op).result).collect()
}

on_both_engines! {
    every_operation_takes_at_least_the_delay(engine) {
        let delay: Arc<dyn Namespace> = Arc::new(Delay::new(mem(), Duration::from_millis(200)));
        let mut driver = Driver::with(&delay, engine);
        let begin = Instant::now();
        for token in 0..50 {
            driver.submit(0, read(token, 1, token));
        }
        let tokens: Vec<u64> = driver.wait(0, 50).iter().map(|done| done.token).collect();
        let took = begin.elapsed();
        assert!(took >= Duration::from_millis(200), "an operation completed too early: {took:?}");
        // If the operations ran one after the other, they would take ten seconds.
        assert!(took < Duration::from_secs(9), "the delays add up: {took:?}");
        assert_eq!(tokens, (0..50).collect::<Vec<_>>(), "a fixed delay changed the order");
    }

    jitter_changes_the_order(engine) {
        let orders: Vec<Vec<u64>> = [3, 3, 4].map(|seed| {
            let delay = Delay::new(mem(), Duration::ZERO).jitter(Duration::from_millis(30), seed);
            let mut driver = Driver::with(&(Arc::new(delay) as Arc<dyn Namespace>), engine);
            for token in 0..20 {
                driver.submit(0, read(token, 1, token));
            }
            driver.wait(0, 20).iter().map(|done| done.token).collect()
        }).to_vec();
        assert_ne!(orders[0], (0..20).collect::<Vec<_>>());
        assert_eq!(orders[0], orders[1], "the same seed gives another order");
        assert_ne!(orders[0], orders[2], "another seed gives the same order");
    }

    a_rule_fails_every_nth_operation(engine) {
        let rule = Rule::new(BlockError::ReadFailed).command(Command::Read).when(When::Every(3));
        let fault: Arc<dyn Namespace> = Arc::new(Fault::new(mem(), vec![rule], 1));
        let mut driver = Driver::with(&fault, engine);
        let ops = (0..9).flat_map(|token| [read(token, 1, token), Op::flush(token)]);
        let results = outcomes(&mut driver, ops);
        let failed: Vec<usize> = (0..18).filter(|&at| results[at].is_err()).collect();
        assert_eq!(failed, [4, 10, 16]);
    }

    rules_select_operations_by_range_and_command(engine) {
        let rules = vec![
            Rule::new(BlockError::NoSpace).command(Command::Write).blocks(100..200),
            Rule::new(BlockError::Aborted).blocks(150..151),
        ];
        let fault = Arc::new(Fault::new(mem(), rules, 1));
        let mut driver = Driver::with(&(Arc::clone(&fault) as Arc<dyn Namespace>), engine);
        let before = driver.read(0, fault.geometry(), 199, 1);
        let write = |lba, blocks: u32| {
            let mut buffer = Buffer::new(blocks as usize * 512);
            buffer.fill(7);
            Op::write(lba, blocks, buffer, 1)
        };
        driver.must(0, write(90, 10));
        driver.must_fail(0, write(90, 11), BlockError::NoSpace);
        driver.must_fail(0, write(199, 5), BlockError::NoSpace);
        driver.must(0, write(200, 5));
        driver.must_fail(0, read(149, 2, 1), BlockError::Aborted);
        driver.must(0, read(151, 2, 1));
        driver.must(0, Op::flush(1));
        assert_eq!(fault.injected(), 3);
        let after = driver.read(0, fault.geometry(), 199, 1);
        assert_eq!(before, after, "a failed write changed something");
    }

    the_seed_determines_random_faults(engine) {
        let run = |seed| {
            let rule = Rule::new(BlockError::ReadFailed).when(When::PerMillion(250_000));
            let fault: Arc<dyn Namespace> = Arc::new(Fault::new(mem(), vec![rule], seed));
            outcomes(&mut Driver::with(&fault, engine), (0..400).map(|token| read(0, 1, token)))
        };
        let failed = run(5).iter().filter(|result| result.is_err()).count();
        assert!((60..140).contains(&failed), "{failed} of 400 is not about a quarter");
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }

    queues_share_the_limit_of_operations_per_second(engine) {
        let limit = Limit::new(mem()).ops_per_second(1000).burst(Duration::ZERO);
        let limit: Arc<dyn Namespace> = Arc::new(limit);
        let mut driver = Driver::with(&limit, engine);
        driver.open(&limit);
        let begin = Instant::now();
        // The two queues share the budget.
        for token in 0..100 {
            driver.submit(0, read(token, 8, token));
            driver.submit(1, read(token, 8, token));
        }
        assert_eq!(driver.queue(0).in_flight(), 100);
        driver.wait(0, 100);
        driver.wait(1, 100);
        let took = begin.elapsed();
        assert!(took >= Duration::from_millis(198), "the limit was exceeded: {took:?}");
        assert!(took < Duration::from_secs(20), "the disk is slower than its limit: {took:?}");
    }

    a_limit_of_bytes_per_second_is_kept(engine) {
        let limit = Limit::new(mem()).bytes_per_second(16 << 20).burst(Duration::from_millis(50));
        let limit: Arc<dyn Namespace> = Arc::new(limit);
        let mut driver = Driver::with(&limit, engine);
        let begin = Instant::now();
        for token in 0..32 {
            driver.submit(0, read(token, 256, token)); // 128 KiB each, 4 MiB in total
        }
        driver.submit(0, Op::flush(99)); // costs no bytes, and keeps its place in the order
        let last = driver.wait(0, 33).pop().unwrap();
        assert_eq!(last.token, 99);
        let took = begin.elapsed();
        // The last operation starts when the budget covers the 31 operations before it, except for
        // the burst.
        assert!(took >= Duration::from_millis(185), "the limit was exceeded: {took:?}");
        assert!(took < Duration::from_secs(20), "the disk is slower than its limit: {took:?}");
    }

    a_queue_with_delayed_operations_can_be_closed(engine) {
        let slow: Arc<dyn Namespace> = Arc::new(Limit::new(mem()).ops_per_second(1));
        let delayed: Arc<dyn Namespace> = Arc::new(Delay::new(slow, Duration::from_secs(60)));
        let mut driver = Driver::with(&delayed, engine);
        for token in 0..10 {
            driver.submit(0, read(token, 1, token));
        }
        let mut done = Vec::new();
        driver.queue(0).poll(&mut done);
        assert!(done.is_empty());
        assert_eq!(driver.queue(0).in_flight(), 10);
        driver.close(0);
        driver.turn(Duration::from_millis(1));
    }
}
