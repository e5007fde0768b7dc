// The page in a real browser: what people do on it, one after another. Prints {"passed", "failures", "measured"}.
//   node journeys.mjs URL CHROMIUM PICTURES FILES     (PICTURES: a folder for pictures, or '')
import { createRequire } from 'node:module'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

const [url, executablePath, pictures, files] = process.argv.slice(2)
const require = createRequire(new URL('../../../web/package.json', import.meta.url))
const { chromium } = require('playwright-core')
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8')
const WAIT = { timeout: 120_000 }
const JOB = '#/look?model=qwen2.5-7b&method=lora&hardware.gpu=rtx-4090&data.tokens=20000000'
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking'] })
const passed = []
const failures = []
const measured = {}

function demand(holds, told) {
  if (!holds) throw new Error(told)
}

/** A page of its own, on which nothing may go wrong silently and which may ask nobody else. */
async function opened(hash = '', { width = 1440, height = 1000, colorScheme = 'light', alone = false } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme, acceptDownloads: true })
  const page = await context.newPage()
  page.wrong = []
  page.on('pageerror', (error) => page.wrong.push(`raised: ${error.message}`))
  page.on('console', (message) => {
    // a refused job is an answer of status 4xx, which the browser writes down by itself
    if (message.type() === 'error' && !/status of 4\d\d/.test(message.text())) page.wrong.push(`console: ${message.text()}`)
  })
  page.on('request', (request) => {
    if (!request.url().startsWith(url) && !request.url().startsWith('blob:')) page.wrong.push(`asked elsewhere: ${request.url()}`)
  })
  page.setDefaultTimeout(WAIT.timeout)
  if (alone) {
    // no plan and no changes are searched: they are other journeys', and would take the time of this one
    await page.route('**/api/plan', (route) => route.fulfill({ body: '', contentType: 'text/event-stream' }))
    await page.route('**/api/fit', (route) => route.fulfill({ status: 422, json: { error: { code: 'unsupported', field: null, message: 'left out' } } }))
  }
  await page.goto(url + hash)
  return page
}

async function journey(name, walk) {
  try {
    const pages = await walk()
    for (const page of pages) {
      demand(page.wrong.length === 0, page.wrong.join('; '))
      await page.context().close()
    }
    passed.push(name)
  } catch (error) {
    failures.push(`${name}: ${String(error.message).split('\n').slice(0, 4).join(' ')}`)
  }
}

const phrase = (page) => page.locator('.verdict .phrase')
const planned = async (page) => {
  await page.locator('[aria-labelledby=plan-title][aria-busy=true]').waitFor()
  await page.locator('[aria-labelledby=plan-title][aria-busy=false]').waitFor()
}
const picture = async (page, name) => {
  if (pictures) await page.screenshot({ path: join(pictures, `${name}.png`), fullPage: true })
}
/** Marks of an axis that have no figure beside them. */
const unnamed = (page) => page.locator('.chart svg').evaluate((chart) => ['x', 'y'].map((name) => {
  const count = (kind, of) => chart.querySelectorAll(`[aria-label="${name}-axis ${kind}"] ${of}`).length
  return { name, marks: count('tick', 'path'), figures: count('tick label', 'text') }
}))
const asked = (page, path, body) =>
  page.evaluate(async ([to, what]) => (await fetch(`api/${to}`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(what) })).json(), [path, body])
async function clean(page, name) {
  await page.evaluate(axe)
  const found = await page.evaluate(() => window.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'] }))
  const serious = found.violations.filter((each) => ['serious', 'critical'].includes(each.impact))
  demand(serious.length === 0, `${name}: ${serious.map((each) => `${each.id} at ${each.nodes[0].target} (${each.nodes.length})`).join('; ')}`)
  const [wide, screen] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth])
  demand(wide <= screen, `${name}: ${wide} px wide on a screen of ${screen}`)
}

await journey('the first page says what the API says', async () => {
  const page = await opened(JOB, { alone: true })
  await phrase(page).waitFor()
  const answer = await asked(page, 'look', { job: { model: 'qwen2.5-7b', method: 'lora', hardware: { gpu: 'rtx-4090' }, data: { tokens: 20000000 } } })
  demand((await phrase(page).textContent()) === answer.phrase, `it says ${await phrase(page).textContent()}, not ${answer.phrase}`)
  const shown = await page.locator('.verdict').textContent()
  for (const text of [answer.title, ...answer.lines]) demand(shown.includes(text), `it does not say ${text}`)
  demand((await page.locator('.rows button[aria-pressed]').count()) > 30, 'cards are missing')
  await page.locator('.rows .more').first().click()
  const named = await page.locator('.rows button[aria-pressed]').count()
  demand(named === answer.cards.cards.length, `${named} of ${answer.cards.cards.length} cards`)
  return [page]
})

await journey('a model is searched and chosen by keyboard', async () => {
  const page = await opened(JOB, { alone: true })
  await phrase(page).waitFor()
  const box = page.getByRole('combobox', { name: 'Model' })
  await box.fill('llama-3.2-1')
  await page.getByRole('option').first().waitFor()
  await box.press('Enter')
  await page.locator('.verdict .title', { hasText: 'llama-3.2-1b' }).waitFor()
  await page.waitForURL(/model=llama-3.2-1b/)
  return [page]
})

await journey('what a slider moves follows at once', async () => {
  const page = await opened(JOB, { alone: true })
  await phrase(page).waitFor()
  const slider = page.getByRole('slider', { name: 'Batch per card, slider' })
  const title = page.locator('.verdict .title')
  const times = []
  for (let move = 0; move < 14; move++) {
    const before = await title.textContent()
    // from the event of the slider to the frame after the answer stands there, by the page's own clock
    const waiting = page.evaluate((text) => new Promise((done) => {
      const place = document.querySelector('.verdict .title')
      let began = 0
      document.addEventListener('input', () => void (began = performance.now()), { once: true, capture: true })
      const look = () => (began && place.textContent !== text ? done(performance.now() - began) : requestAnimationFrame(look))
      look()
    }), before)
    await slider.press(move % 8 < 4 ? 'ArrowLeft' : 'ArrowRight')
    times.push(await waiting)
  }
  const sorted = times.slice(4).sort((a, b) => a - b)
  measured.slider_ms = { moves: sorted.length, least: Math.round(sorted[0]), median: Math.round(sorted[sorted.length >> 1]), most: Math.round(sorted.at(-1)) }
  return [page]
})

await journey('a change that makes it fit is applied by one click', async () => {
  const page = await opened(JOB)
  await phrase(page).filter({ hasText: 'does not fit' }).waitFor()
  await page.getByRole('button', { name: /^Apply kernels/ }).click()
  await phrase(page).filter({ hasText: /^fits/ }).waitFor()
  await page.waitForURL(/kernels=/)
  return [page]
})

await journey('a card is chosen by its name', async () => {
  const page = await opened(JOB, { alone: true })
  await phrase(page).waitFor()
  await page.getByRole('button', { name: /A100 PCIe 40 GB/ }).click()
  await page.locator('.verdict .title', { hasText: '1 x A100 PCIe 40 GB' }).waitFor()
  await phrase(page).filter({ hasText: /^fits/ }).waitFor()
  return [page]
})

await journey('what is typed is taken as it is meant, or refused by name', async () => {
  const page = await opened(`${JOB}&plan.max_usd=much`)
  await page.locator('aside').getByRole('alert').filter({ hasText: "got 'much'" }).waitFor()
  await page.getByLabel('Budget, $').fill('$1,000')
  const bounded = page.waitForRequest((request) => request.url().endsWith('/api/plan'))
  await page.keyboard.press('Tab')
  demand((await bounded).postDataJSON().max_usd === 1000, '$1,000 is not 1000')
  await page.locator('aside').getByRole('alert').waitFor({ state: 'detached' })
  const tokens = page.getByLabel('Tokens of data, tokens')
  for (const [typed, held] of [['3.5M', '3,500,000'], ['many', '3,500,000'], ['1,500', '1,500'], ['1,5', '1,500']]) {
    await tokens.fill(typed)
    await page.keyboard.press('Tab')
    await page.waitForFunction(([box, text]) => box.value === text, [await tokens.elementHandle(), held])
  }
  await page.waitForURL(/data\.tokens=1500(&|$)/)
  return [page]
})

await journey('while a plan is searched, nothing is said of the job before', async () => {
  const page = await opened(JOB)
  await page.locator('.answer', { hasText: 'Rent ' }).waitFor()
  await page.getByRole('radio', { name: 'QLoRA' }).check()
  demand((await page.locator('[aria-labelledby=plan-title]').getAttribute('aria-busy')) === 'true', 'the plan of the job before stands as this one’s')
  await page.locator('.answer', { hasText: 'so far' }).waitFor()
  demand((await page.locator('.pill.good').count()) === 0, 'picks of the job before')
  await page.locator('.answer', { hasText: 'Rent ' }).waitFor()
  return [page]
})

await journey('what was found before a search is broken off is kept', async () => {
  const page = await opened(JOB)
  await page.locator('.answer', { hasText: 'Rent ' }).waitFor()
  const told = await page.evaluate(async () => {
    const response = await fetch('api/plan', { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ job: { model: 'gpt2', hardware: { gpu: 'rtx-4090' }, data: { tokens: 20000 } } }) })
    return response.text()
  })
  const choice = told.split('\n\n').find((each) => each.startsWith('event: choice'))
  const error = JSON.stringify({ code: 'limit', field: null, message: 'this takes more time than a request may' })
  await page.route('**/api/plan', (route) => route.fulfill({ contentType: 'text/event-stream', body: `${choice}\n\nevent: error\ndata: ${error}\n\n` }))
  await page.getByRole('radio', { name: 'QLoRA' }).check()
  await page.locator('.why', { hasText: 'more time' }).waitFor()
  demand((await page.locator('.name').allTextContents()).join().includes(JSON.parse(choice.split('data: ')[1]).hardware), 'it is lost')
  demand((await page.locator('.answer').textContent()).startsWith('Cheapest so far'), 'the job before is answered')
  return [page]
})

await journey('the plan streams in, its bill opens and adds up, and one click applies it', async () => {
  const page = await opened(`${JOB}&plan.within=6h&plan.eu=true`)
  const began = Date.now()
  await page.locator('[aria-labelledby=plan-title] .name').first().waitFor()
  const first = Date.now() - began
  const busy = await page.locator('[aria-labelledby=plan-title]').getAttribute('aria-busy')
  await page.locator('[aria-labelledby=plan-title][aria-busy=false]').waitFor()
  measured.plan = { first_choice_ms: first, whole_ms: Date.now() - began, streamed: busy === 'true' }
  demand((await page.locator('.answer').textContent()).includes('Rent'), 'no answer')
  demand(await page.locator('.chart svg').isVisible(), 'no chart')
  const [times] = await unnamed(page)
  demand(times.marks > 2 && times.marks === times.figures, `${times.marks} times are marked, ${times.figures} are said`)
  await page.locator('.name').first().click()
  const cells = await page.locator('.bill tr:not(.sum) td.right').allTextContents()
  const total = Number((await page.locator('.bill tr.sum td.right').textContent()).replace('$', ''))
  const sum = cells.reduce((all, each) => all + Number(each), 0)
  demand(Math.abs(sum - total) < 0.005 * cells.length + 0.01, `lines sum to ${sum}, not ${total}`)
  await picture(page, 'plan')
  await page.getByRole('button', { name: 'Apply to the job' }).click()
  await phrase(page).filter({ hasText: /^fits/ }).waitFor()
  return [page]
})

await journey('set-ups stand side by side, and their address opens the same', async () => {
  const page = await opened(JOB)
  await phrase(page).waitFor()
  await page.getByRole('button', { name: '+ Set-up' }).click()
  await page.getByRole('switch', { name: 'Liger kernels' }).check()
  await page.getByRole('button', { name: 'Side by side' }).click()
  await page.getByText('What each change costs, from A to B').waitFor()
  await page.locator('.columns .phrase').nth(1).filter({ hasText: /^fits/ }).waitFor()
  await page.locator('td', { hasText: /less$/ }).first().waitFor()
  await page.waitForURL(/#\/compare.*kernels=/)
  await page.getByRole('button', { name: '+ Set-up' }).click()
  await page.getByRole('button', { name: 'Change set-up C' }).click()
  await page.getByRole('radio', { name: 'QLoRA' }).check()
  await page.getByRole('button', { name: 'Side by side' }).click()
  await page.getByText('What each change costs, from A to C').waitFor()
  await page.locator('td', { hasText: 'method: lora → qlora' }).waitFor()
  for (const name of ['matmuls', 'weights']) await page.getByRole('region', { name: 'Colours' }).getByText(name, { exact: true }).waitFor()
  await page.waitForURL(/#\/compare.*qlora/)
  const again = await opened(new URL(page.url()).hash)
  await again.locator('.columns .phrase').nth(1).filter({ hasText: /^fits/ }).waitFor()
  demand((await again.locator('.columns .phrase').first().textContent()) === (await page.locator('.columns .phrase').first().textContent()), 'another page')
  await picture(page, 'side_by_side')
  await clean(page, 'side by side')
  await page.setViewportSize({ width: 390, height: 844 })
  await clean(page, 'side by side on a phone')
  for (const table of await page.locator('.scroll').all()) demand(await table.evaluate((each) => each.scrollWidth <= each.clientWidth), 'a table is cut')
  await page.goBack()
  await phrase(page).waitFor()
  return [page, again]
})

await journey('text is copied also from a server of another machine, whose page has no clipboard of its own', async () => {
  const page = await opened('#/trace', { alone: true })
  await page.addInitScript(() => {
    Object.defineProperty(navigator, 'clipboard', { value: undefined })
    document.addEventListener('copy', () => void (window.taken = document.activeElement.value))
  })
  await page.goto(`${url}${JOB}`)
  await page.reload()
  await phrase(page).waitFor()
  await page.getByRole('button', { name: 'Copy link' }).click()
  await page.getByRole('button', { name: 'Link copied' }).waitFor()
  demand((await page.evaluate(() => window.taken)) === page.url(), 'the link is not what was copied')
  await page.getByRole('button', { name: 'Export' }).click()
  await page.locator('dialog pre', { hasText: 'model: qwen2.5-7b' }).waitFor()
  await page.getByRole('button', { name: 'Copy', exact: true }).click()
  await page.getByRole('button', { name: 'Copied', exact: true }).waitFor()
  demand((await page.evaluate(() => window.taken)).startsWith('model: qwen2.5-7b'), 'the file is not what was copied')
  return [page]
})

await journey('it is taken elsewhere, as six kinds of text', async () => {
  const page = await opened(JOB, { alone: true })
  await phrase(page).waitFor()
  await page.getByRole('button', { name: 'Export' }).click()
  for (const [name, holds] of [['YAML', 'model: qwen2.5-7b'], ['Command', 'tunecast predict qwen2.5-7b'], ['Python', 'import tunecast'], ['Slurm', '#SBATCH'], ['SkyPilot', 'accelerators'], ['Report', 'characters of HTML']]) {
    await page.getByRole('button', { name, exact: true }).click()
    await page.locator('dialog pre', { hasText: holds }).waitFor()
  }
  const saved = page.waitForEvent('download')
  await page.getByRole('button', { name: 'Save as a file' }).click()
  demand((await saved).suggestedFilename() === 'report.html', 'no report.html')
  await clean(page, 'export')
  await page.keyboard.press('Escape')
  return [page]
})

await journey('a config.json, a trainer’s file and data are read', async () => {
  const page = await opened(JOB, { alone: true })
  await phrase(page).waitFor()
  const input = page.locator('.model input[type=file]')
  await input.setInputFiles(join(files, 'config.json'))
  await page.getByText('taken as the model').waitFor()
  await phrase(page).waitFor()
  await input.setInputFiles(join(files, 'axolotl-qlora.yml'))
  await page.getByText('read as axolotl').waitFor()
  await input.setInputFiles(join(files, 'chats.jsonl'))
  await page.getByText(/samples, .* tokens/).waitFor()
  await page.waitForURL(/data\.tokens=/)
  await page.getByRole('slider', { name: 'Batch per card, slider' }).press('ArrowLeft')
  await page.waitForURL(/micro_batch=1/)
  await page.getByRole('button', { name: 'Export' }).click()
  await page.locator('dialog pre', { hasText: 'micro_batch_size: 1\n' }).waitFor()
  const own = readFileSync(join(files, 'axolotl-qlora.yml'), 'utf8').replace('micro_batch_size: 2', 'micro_batch_size: 1')
  demand((await page.locator('dialog pre').textContent()) === own, 'more of the file was changed')
  await page.locator('dialog code', { hasText: '--gpu rtx-4090' }).waitFor()
  await clean(page, 'a file of one’s own')
  return [page]
})

await journey('a file that only looks like a trace is refused, and nothing of it runs', async () => {
  const page = await opened('#/trace')
  const trace = JSON.parse(readFileSync(join(files, 'trace.json'), 'utf8'))
  const markup = '<img src=x onerror="window.owned = true">'
  const named = { ...trace, trace: { ...trace.trace, word: markup, largest: trace.trace.largest.map((each) => ({ ...each, module: markup, source: markup })) } }
  const give = async (value) => page.locator('input[type=file]').setInputFiles({ name: 'given.json', mimeType: 'application/json', buffer: Buffer.from(JSON.stringify(value)) })
  for (const phases of [[null], [], [{ phase: 1 }], 5]) {
    await give({ ...trace, trace: { ...trace.trace, phases } })
    await page.getByRole('alert').filter({ hasText: 'holds no trace' }).waitFor()
  }
  await give({ ...trace, memory: null })
  await page.getByRole('alert').filter({ hasText: 'holds no trace' }).waitFor()
  await give(named)
  await page.getByText(markup).first().waitFor()
  demand((await page.evaluate(() => window.owned)) === undefined && (await page.locator('main img').count()) === 0, 'its text became the page’s')
  return [page]
})

await journey('what is refused says why, and the page goes on', async () => {
  const page = await opened('#/look?model=no-such-model&hardware.gpu=rtx-4090', { alone: true })
  await page.getByRole('alert').filter({ hasText: 'no-such-model' }).waitFor()
  const told = await page.getByRole('alert').textContent()
  demand(told.trim().startsWith('model: got') && told.includes('drop its config.json'), `it says ${told}`)
  demand((await page.getByRole('combobox', { name: 'Card' }).inputValue()) === 'rtx-4090', 'the card is gone from its list')
  const box = page.getByRole('combobox', { name: 'Model' })
  await box.fill('gpt2')
  await page.getByRole('option').first().waitFor()
  await box.press('Enter')
  await phrase(page).filter({ hasText: /fit/ }).waitFor()
  demand((await page.getByRole('alert').count()) === 0, 'still refused')
  await box.fill('nothing-of-that-name')
  await page.getByRole('status').filter({ hasText: 'No bundled model has that name' }).waitFor()
  await box.press('Escape')
  await page.route('**/api/look', (route) => route.abort())
  await page.getByRole('slider', { name: 'Batch per card, slider' }).press('ArrowLeft')
  await page.getByRole('alert').filter({ hasText: /^\s*the server does not answer/ }).waitFor()
  page.wrong = page.wrong.filter((each) => !each.includes('ERR_FAILED'))
  return [page]
})

await journey('what has no control of its own is shown, and what is refused of it is taken back', async () => {
  const page = await opened(`${JOB}&hardware.gpus=8&parallel.tensor=3&lora.targets=["q_proj","o_proj"]`, { alone: true })
  await page.getByRole('alert').filter({ hasText: 'parallel.tensor: got' }).waitFor()
  await page.locator('aside').getByText('parallel.tensor: 3').waitFor()
  await page.locator('aside').getByText('q_proj, o_proj').waitFor()
  demand((await page.getByRole('radio', { name: 'PEFT default' }).isChecked()) === false, 'targets that are listed pass for the default')
  await clean(page, 'refused')
  await page.getByRole('button', { name: 'Remove parallel.tensor' }).last().click()
  await phrase(page).filter({ hasText: /fit/ }).waitFor()
  demand((await page.locator('.trust').textContent()).startsWith('How far to trust this: RTX 4090'), 'how far to trust it is not said')
  demand((await page.getByRole('alert').count()) === 0, 'still refused')
  return [page]
})

await journey('an amount of data that nobody gave is said to be assumed', async () => {
  const page = await opened('#/look?model=gpt2&hardware.gpu=rtx-4090')
  await planned(page)
  await page.getByText('10,000,000 tokens x 3 epochs are assumed: set').waitFor()
  return [page]
})

await journey('runs are shown against their prediction', async () => {
  const page = await opened('#/runs')
  await page.getByText('No run was measured').waitFor()
  await clean(page, 'no runs')
  await page.route('**/api/runs', (route) => route.fulfill({ path: join(files, 'runs.json'), contentType: 'application/json' }))
  await page.reload()
  await page.locator('.chart svg').waitFor()
  demand((await page.getByRole('region', { name: 'All runs' }).locator('tbody tr').count()) === 2, 'two runs')
  const calibration = { schema: 'tunecast.calibration-shown/1', resets: [], cards: [{ gpu: 'h200-sxm-141gb', runs: 2, left_out: [], context: null, start_s: null, groups: [{ waits_for: 'card', stack: 'transformers', model: 'llama-3.1-8b', hosts: [], runs: 2, ratio: 1.04, range: [1.01, 1.07], newest: '2026-11-17T00:12:00Z' }] }] }
  await page.route('**/api/calibration', (route) => route.fulfill({ json: calibration }))
  const [run] = JSON.parse(readFileSync(join(files, 'runs.json'), 'utf8'))
  const live = { ...run, id: 'f'.repeat(32), state: 'running', memory_ratio: null, time_ratio: null, line: 'step 40: 16.0 s (predicted 15.4 s)' }
  await page.route('**/api/runs/live', (route) => route.fulfill({ contentType: 'text/event-stream', body: `event: runs\ndata: ${JSON.stringify([live])}\n\n` }))
  await page.reload()
  await page.getByText(live.line).waitFor()
  demand((await page.getByRole('region', { name: 'All runs' }).locator('tbody tr').count()) === 3, 'the live one too')
  demand((await page.getByRole('region', { name: 'What calibration changed' }).getByText('+4.0 %').count()) === 1, 'what was learned')
  await clean(page, 'runs')
  await picture(page, 'runs')
  return [page]
})

await journey('a trace is opened and walked', async () => {
  const page = await opened('#/trace')
  await page.locator('input[type=file]').setInputFiles(join(files, 'trace.json'))
  await page.getByText('Alive at the peak').first().waitFor()
  const before = await page.locator('[role=option][aria-selected=true]').textContent()
  await page.locator('[role=option][aria-selected=true]').press('ArrowUp')
  demand((await page.locator('[role=option][aria-selected=true]').textContent()) !== before, 'arrow keys do not walk')
  await clean(page, 'trace')
  await picture(page, 'trace')
  await page.setViewportSize({ width: 390, height: 844 })
  await clean(page, 'trace on a phone')
  const table = page.getByRole('region', { name: 'Alive at the peak' })
  demand(await table.evaluate((each) => each.scrollWidth <= each.clientWidth && each.offsetHeight < 2500), 'what is alive cannot be read on a phone')
  await page.locator('input[type=file]').setInputFiles(join(files, 'config.json'))
  await page.getByRole('alert').filter({ hasText: 'holds no trace' }).waitFor()
  return [page]
})

for (const colorScheme of ['light', 'dark'])
  await journey(`nothing serious is found by axe on a desktop, a phone and a narrow one: ${colorScheme}`, async () => {
    const page = await opened(JOB, { colorScheme })
    await phrase(page).waitFor()
    await planned(page)
    await page.locator('.name').first().click()
    for (const [kind, width, height] of [['desktop', 1440, 1000], ['phone', 390, 844], ['narrow', 320, 640]]) {
      await page.setViewportSize({ width, height })
      await page.waitForTimeout(500) // the chart is drawn anew
      await clean(page, kind)
      await picture(page, `look_${kind}_${colorScheme}`)
    }
    demand(await page.locator('.always .bar').isVisible(), 'beside the sliders of a phone no memory is seen')
    return [page]
  })

await journey('every control is reached by the Tab key', async () => {
  const page = await opened(JOB, { alone: true })
  await phrase(page).waitFor()
  const seen = new Set()
  for (let presses = 0; presses < 45; presses++) {
    await page.keyboard.press('Tab')
    seen.add(await page.evaluate(() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.labels?.[0]?.textContent.trim().split('\n')[0] ?? document.activeElement.textContent.trim()))
  }
  for (const name of ['Rank, slider', 'Gradient checkpointing', 'Export', 'EU only']) demand([...seen].some((each) => each.startsWith(name)), `${name} is not reached: ${[...seen].join(' | ')}`)
  return [page]
})

await browser.close()
console.log(JSON.stringify({ passed, failures, measured }))
