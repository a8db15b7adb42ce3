// node-postgres: see ../README.md.  It sends parameters as texts without a type.
'use strict';

const { Client } = require('pg');

const [host, port, user, database] = process.argv.slice(2);
const NAMES = ['account:1', 'account:2'];
const ODD = ['a,b', 'quote"', 'back\\slash', '{x', 'ä'];

async function cases(mode, query) {
    const one = async (name, text, values) => {
        let outcome;
        try {
            const result = await query(name, text, values);
            outcome = Object.values(result.rows[0])[0];
        } catch (error) {
            outcome = error.code ?? 'client';
        }
        console.log([mode, name, outcome].join('\t'));
    };

    await one('acquire', 'SELECT redlock_acquire($1)', [NAMES]);
    await one('try', 'SELECT redlock_try($1)', [NAMES]);
    await one('acquire_all', "SELECT cardinality(redlock_acquire_all($1, scope => 'session'))", [NAMES]);
    await one('held', 'SELECT count(redlock_token(n)) FROM unnest($1::text[]) n', [NAMES]);
    await one('try_all', 'SELECT redlock_try_all($1)::int', [NAMES]);
    await one('odd', 'SELECT count(redlock_token(n)) FROM unnest($1::text[]) n,'
        + " (SELECT redlock_acquire_all($2, scope => 'session') OFFSET 0) t", [ODD, ODD]);
    await one('wait', 'SELECT redlock_try($1, wait => $2)::int', ['free', '1 s']);
}

async function main() {
    for (const mode of ['unnamed', 'named']) {
        const client = new Client({ host, port: Number(port), user, database });
        await client.connect();
        await cases(mode, (name, text, values) =>
            client.query(mode === 'named' ? { name, text, values } : { text, values }));
        await client.end();
    }
}

main();
