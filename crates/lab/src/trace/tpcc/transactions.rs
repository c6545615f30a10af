//! The transactions of TPC-C as operations on indexes, without end, and the keys of its tables.
//!
//! Invariant: a key holds its warehouse and district in its upper bits, so districts never mix.

use super::super::{Op, Step};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;

const DISTRICTS: u64 = 10;
/// Of a district, when the trace begins.
const CUSTOMERS: u64 = 3000;
const ORDERS: u64 = 3000;
const UNDELIVERED: u64 = 900;
const ITEMS: u64 = 100_000;
const NAMES: u64 = 1000;
/// NURand's constant, the same for all.
const C: u64 = 123;
/// Has no common divisor with the number of customers: the first orders' customers are a permutation.
const STRIDE: u64 = 1637;

const WAREHOUSE: u8 = 0;
const DISTRICT: u8 = 1;
const CUSTOMER: u8 = 2;
const CUSTOMER_BY_NAME: u8 = 3;
const ITEM_AND_STOCK: u8 = 4;
const ORDERS_AND_BY_CUSTOMER: u8 = 5;
const ORDER_LINE: u8 = 6;
const NEW_ORDER: u8 = 7;

const ORDER_BITS: u32 = 28;
const CUSTOMER_BITS: u32 = 12;
const NAME_BITS: u32 = 10;
const LINE_BITS: u32 = 4;
const ITEM_BITS: u32 = 17;
/// Apart from each other, where two tables share an index.
const SECOND: u64 = 1 << 60;

/// A district of a warehouse: its number among all.
#[derive(Clone, Copy)]
struct District(u64);

impl District {
    fn of(warehouse: u64, district: u64) -> Self {
        Self(warehouse << 4 | district)
    }

    fn customer(self, customer: u64) -> u64 {
        self.0 << CUSTOMER_BITS | customer
    }

    fn name(self, name: u64) -> u64 {
        (self.0 << NAME_BITS | name) << CUSTOMER_BITS
    }

    fn order(self, order: u64) -> u64 {
        self.0 << ORDER_BITS | order
    }

    fn order_of_customer(self, customer: u64, order: u64) -> u64 {
        SECOND | self.customer(customer) << ORDER_BITS | order
    }

    fn line(self, order: u64, line: u64) -> u64 {
        self.order(order) << LINE_BITS | line
    }
}

fn stock(warehouse: u64, item: u64) -> u64 {
    SECOND | warehouse << ITEM_BITS | item
}

/// A number from `0..count` as TPC-C draws those that are not uniform.
fn nurand(rng: &mut StdRng, most: u64, count: u64) -> u64 {
    ((rng.random_range(0..=most) | rng.random_range(0..count)) + C) % count
}

/// What there is, by number alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub warehouses: u64,
    pub seed: u64,
}

/// An order: who gave it, and what the lines are for.
struct Order {
    customer: u64,
    items: Vec<u64>,
}

impl Layout {
    fn rng(self, salt: u64, number: u64) -> StdRng {
        // Neighbours must not draw alike: the generator mixes its seed well.
        StdRng::seed_from_u64(self.seed.rotate_left(32) ^ salt << 60 ^ number)
    }

    fn order(self, district: District, order: u64) -> Order {
        let (mut rng, drawn, lines) = self.begun(district, order);
        let customer = if order < ORDERS { order * STRIDE % CUSTOMERS } else { drawn };
        Order { customer, items: (0..lines).map(|_| nurand(&mut rng, 8191, ITEMS)).collect() }
    }

    /// How many lines an order has: drawn before the items, so they need not be.
    fn lines(self, district: District, order: u64) -> u64 {
        u64::from(self.begun(district, order).2)
    }

    /// The customer as drawn, the number of lines, and the generator that draws the items next.
    fn begun(self, district: District, order: u64) -> (StdRng, u64, u32) {
        let mut rng = self.rng(1, district.order(order));
        let drawn = nurand(&mut rng, 1023, CUSTOMERS);
        let lines = rng.random_range(5..=15_u32);
        (rng, drawn, lines)
    }

    fn name(self, district: District, customer: u64) -> u64 {
        if customer < NAMES {
            customer
        } else {
            nurand(&mut self.rng(2, district.customer(customer)), 255, NAMES)
        }
    }

    fn districts(self) -> impl Iterator<Item = District> {
        (0..self.warehouses)
            .flat_map(|warehouse| (0..DISTRICTS).map(move |district| District::of(warehouse, district)))
    }

    pub fn records(self, tree: u8) -> u64 {
        let districts = self.warehouses * DISTRICTS;
        match tree {
            WAREHOUSE => self.warehouses,
            DISTRICT => districts,
            CUSTOMER | CUSTOMER_BY_NAME => districts * CUSTOMERS,
            ITEM_AND_STOCK => ITEMS * (1 + self.warehouses),
            ORDERS_AND_BY_CUSTOMER => 2 * districts * ORDERS,
            NEW_ORDER => districts * UNDELIVERED,
            _ => {
                let orders =
                    self.districts().flat_map(|district| (0..ORDERS).map(move |order| (district, order)));
                orders.map(|(district, order)| self.lines(district, order)).sum()
            }
        }
    }

    pub fn load(self, tree: u8) -> Box<dyn Iterator<Item = (u64, u64)>> {
        let of_districts = move |keys: fn(Layout, District) -> Vec<u64>| {
            self.districts().flat_map(move |district| keys(self, district))
        };
        let keys: Box<dyn Iterator<Item = u64>> = match tree {
            WAREHOUSE => Box::new(0..self.warehouses),
            DISTRICT => Box::new(self.districts().map(|district| district.0)),
            CUSTOMER => Box::new(of_districts(|_, district| {
                (0..CUSTOMERS).map(|customer| district.customer(customer)).collect()
            })),
            CUSTOMER_BY_NAME => Box::new(of_districts(|layout, district| {
                let by_name = |customer| district.name(layout.name(district, customer)) | customer;
                let mut keys: Vec<u64> = (0..CUSTOMERS).map(by_name).collect();
                keys.sort_unstable();
                keys
            })),
            ITEM_AND_STOCK => {
                let stock = (0..self.warehouses)
                    .flat_map(|warehouse| (0..ITEMS).map(move |item| stock(warehouse, item)));
                Box::new((0..ITEMS).chain(stock))
            }
            ORDERS_AND_BY_CUSTOMER => {
                let orders =
                    of_districts(|_, district| (0..ORDERS).map(|order| district.order(order)).collect());
                let by_customer = of_districts(|_, district| {
                    let customer = |order| order * STRIDE % CUSTOMERS;
                    let mut keys: Vec<u64> =
                        (0..ORDERS).map(|order| district.order_of_customer(customer(order), order)).collect();
                    keys.sort_unstable();
                    keys
                });
                Box::new(orders.chain(by_customer))
            }
            ORDER_LINE => Box::new(of_districts(|layout, district| {
                let lines = |order| {
                    let lines = layout.lines(district, order);
                    (0..lines).map(move |line| district.line(order, line))
                };
                (0..ORDERS).flat_map(lines).collect()
            })),
            _ => Box::new(of_districts(|_, district| {
                (ORDERS - UNDELIVERED..ORDERS).map(|order| district.order(order)).collect()
            })),
        };
        Box::new(keys.map(|key| (key, key)))
    }
}

/// What changes.
#[derive(Clone, Copy)]
struct Orders {
    /// The number of the next one.
    next: u64,
    /// The oldest that is not delivered.
    oldest: u64,
}

/// See the module.
pub(super) struct Transactions {
    layout: Layout,
    orders: Vec<Orders>,
    /// What each client has still to do.
    clients: Vec<VecDeque<Step>>,
    rng: StdRng,
}

impl Transactions {
    pub fn new(layout: Layout, clients: u32) -> Self {
        let orders = Orders { next: ORDERS, oldest: ORDERS - UNDELIVERED };
        Self {
            layout,
            orders: vec![orders; (layout.warehouses * DISTRICTS) as usize],
            clients: vec![VecDeque::new(); clients as usize],
            rng: layout.rng(3, 0),
        }
    }

    /// The next operation of some client.
    pub fn next_step(&mut self) -> Step {
        let client = self.rng.random_range(0..self.clients.len());
        loop {
            if let Some(step) = self.clients[client].pop_front() {
                return step;
            }
            let mut steps = std::mem::take(&mut self.clients[client]);
            self.transaction(&mut steps);
            self.clients[client] = steps;
        }
    }

    fn transaction(&mut self, steps: &mut VecDeque<Step>) {
        let warehouse = self.rng.random_range(0..self.layout.warehouses);
        let district = self.rng.random_range(0..DISTRICTS);
        match self.rng.random_range(0..100) {
            0..45 => self.new_order(warehouse, district, steps),
            45..88 => self.payment(warehouse, district, steps),
            88..92 => self.order_status(warehouse, district, steps),
            92..96 => self.delivery(warehouse, steps),
            _ => self.stock_level(warehouse, district, steps),
        }
    }

    fn orders(&mut self, warehouse: u64, district: u64) -> &mut Orders {
        &mut self.orders[(warehouse * DISTRICTS + district) as usize]
    }

    /// Some other warehouse, if there is one.
    fn other(&mut self, warehouse: u64) -> u64 {
        match self.layout.warehouses {
            1 => warehouse,
            many => (warehouse + self.rng.random_range(1..many)) % many,
        }
    }

    fn new_order(&mut self, warehouse: u64, district: u64, steps: &mut VecDeque<Step>) {
        let orders = self.orders(warehouse, district);
        let number = orders.next;
        orders.next += 1;
        let district = District::of(warehouse, district);
        let order = self.layout.order(district, number);
        steps.push_back(search(WAREHOUSE, warehouse));
        steps.push_back(search(DISTRICT, district.0));
        steps.push_back(search(CUSTOMER, district.customer(order.customer)));
        steps.push_back(insert(ORDERS_AND_BY_CUSTOMER, district.order(number)));
        steps.push_back(insert(ORDERS_AND_BY_CUSTOMER, district.order_of_customer(order.customer, number)));
        steps.push_back(insert(NEW_ORDER, district.order(number)));
        for (line, item) in (0..).zip(order.items) {
            let supplier = if self.rng.random_ratio(1, 100) { self.other(warehouse) } else { warehouse };
            steps.push_back(search(ITEM_AND_STOCK, item));
            steps.push_back(search(ITEM_AND_STOCK, stock(supplier, item)));
            steps.push_back(insert(ORDER_LINE, district.line(number, line)));
        }
    }

    /// A customer, by name or by number.
    fn customer(&mut self, district: District, steps: &mut VecDeque<Step>) {
        if self.rng.random_ratio(6, 10) {
            let name = nurand(&mut self.rng, 255, NAMES);
            steps.push_back(range(CUSTOMER_BY_NAME, district.name(name), district.name(name + 1)));
        } else {
            let customer = nurand(&mut self.rng, 1023, CUSTOMERS);
            steps.push_back(search(CUSTOMER, district.customer(customer)));
        }
    }

    fn payment(&mut self, warehouse: u64, district: u64, steps: &mut VecDeque<Step>) {
        steps.push_back(search(WAREHOUSE, warehouse));
        steps.push_back(search(DISTRICT, District::of(warehouse, district).0));
        let mut home = District::of(warehouse, district);
        if self.rng.random_ratio(15, 100) {
            home = District::of(self.other(warehouse), self.rng.random_range(0..DISTRICTS));
        }
        self.customer(home, steps);
    }

    /// Of a customer who gave one of the last orders, since nothing is kept of the others.
    fn order_status(&mut self, warehouse: u64, district: u64, steps: &mut VecDeque<Step>) {
        let next = self.orders(warehouse, district).next;
        let number = self.rng.random_range(next - ORDERS..next);
        let district = District::of(warehouse, district);
        let customer = self.layout.order(district, number).customer;
        self.customer(district, steps);
        let first = district.order_of_customer(customer, 0);
        steps.push_back(range(ORDERS_AND_BY_CUSTOMER, first, district.order_of_customer(customer + 1, 0)));
        steps.push_back(range(ORDER_LINE, district.line(number, 0), district.line(number + 1, 0)));
    }

    fn delivery(&mut self, warehouse: u64, steps: &mut VecDeque<Step>) {
        for number in 0..DISTRICTS {
            let orders = self.orders(warehouse, number);
            // The newest may not have been written yet by the client that gives it.
            if orders.oldest + UNDELIVERED / 2 >= orders.next {
                continue;
            }
            let order = orders.oldest;
            orders.oldest += 1;
            let district = District::of(warehouse, number);
            let customer = self.layout.order(district, order).customer;
            steps.push_back(range(NEW_ORDER, district.order(order), district.order(order + 1)));
            steps.push_back(delete(NEW_ORDER, district.order(order)));
            steps.push_back(search(ORDERS_AND_BY_CUSTOMER, district.order(order)));
            steps.push_back(range(ORDER_LINE, district.line(order, 0), district.line(order + 1, 0)));
            steps.push_back(search(CUSTOMER, district.customer(customer)));
        }
    }

    fn stock_level(&mut self, warehouse: u64, district: u64, steps: &mut VecDeque<Step>) {
        let next = self.orders(warehouse, district).next;
        let district = District::of(warehouse, district);
        let orders = next - 20..next;
        steps.push_back(search(DISTRICT, district.0));
        steps.push_back(range(ORDER_LINE, district.line(orders.start, 0), district.line(orders.end, 0)));
        let mut items: Vec<u64> = orders.flat_map(|order| self.layout.order(district, order).items).collect();
        items.sort_unstable();
        items.dedup();
        steps.extend(items.into_iter().map(|item| search(ITEM_AND_STOCK, stock(warehouse, item))));
    }
}

fn search(tree: u8, key: u64) -> Step {
    Step::new(tree, Op::Search, key, 0)
}

fn insert(tree: u8, key: u64) -> Step {
    Step::new(tree, Op::Insert, key, key)
}

fn delete(tree: u8, key: u64) -> Step {
    Step::new(tree, Op::Delete, key, 0)
}

fn range(tree: u8, key: u64, end: u64) -> Step {
    Step::new(tree, Op::Range, key, end)
}
