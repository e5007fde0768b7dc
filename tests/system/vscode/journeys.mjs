// The extension in code-server: what people do with it, one after another. Prints {"passed", "failures", "measured"}.
//   node journeys.mjs URL CHROMIUM EDITOR FOLDER PICTURES ONLY     (PICTURES: a folder for pictures, or '')
import { createRequire } from 'node:module'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { join } from 'node:path'

const [url, executablePath, editor, folder, pictures, only] = process.argv.slice(2)
const { chromium } = createRequire(join(editor, 'package.json'))('playwright-core')
const WAIT = { timeout: 300_000 }
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking'] })
const passed = []
const failures = []
const measured = {}

function demand(holds, told) {
  if (!holds) throw new Error(told)
}

/** An editor with a folder open. What frames of ours ask of anybody else is written down. */
async function opened(name) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 } })
  const page = await context.newPage()
  page.setDefaultTimeout(WAIT.timeout)
  page.elsewhere = []
  page.on('request', (request) => {
    const ours = request.url().startsWith('http') && request.frame()?.url().includes('/proxy/')
    if (ours && !request.url().startsWith(url) && !request.url().startsWith('blob:')) page.elsewhere.push(request.url())
  })
  await page.goto(`${url}?folder=${join(folder, name)}`)
  await page.locator('.explorer-folders-view .monaco-list-row').first().waitFor()
  return page
}

async function journey(name, page, walk) {
  if (only && !only.split('|').some((words) => name.includes(words))) return
  try {
    await walk()
    demand(page.elsewhere.length === 0, `asked elsewhere: ${page.elsewhere.join(' ')}`)
    passed.push(name)
  } catch (error) {
    failures.push(`${name}: ${String(error.message).split('\n').slice(0, 4).join(' ')}`)
    await picture(page, `failed ${name}`)
  }
  console.error(`${passed.at(-1) === name ? 'passed' : 'FAILED'}  ${name}`)
}

const picture = async (page, name) => {
  if (pictures) await page.screenshot({ path: join(pictures, `${name.replaceAll(/\W+/g, '-')}.png`) })
}

async function picked(page, prefix, text) {
  const box = page.locator('.quick-input-widget input[type=text]')
  await page.keyboard.press(prefix === '>' ? 'F1' : 'Control+p')
  await box.waitFor()
  await box.fill(prefix + text)
  await page.locator('.quick-input-list .monaco-list-row.focused', { hasText: text }).waitFor()
  await page.keyboard.press('Enter')
  await box.waitFor({ state: 'hidden' })
}
const command = (page, title) => picked(page, '>', title)
async function file(page, name) {
  await page.keyboard.press('Control+1') // the first group of editors
  await picked(page, '', name)
  await page.locator('.editor-group-container').first().locator('.tab.active', { hasText: name }).waitFor()
}
/** Text as the editor draws it, whose spaces are no usual ones. */
const plain = async (locator) => (await locator.innerText()).replaceAll('\u00a0', ' ')
const problems = (page) => page.locator('.markers-panel-container .monaco-list-row', { hasText: /GiB/ })
const lens = (page) => page.locator('.codelens-decoration a')
const typed = async (page, text) => {
  const rows = page.locator('.terminal-wrapper.active .xterm-rows')
  await rows.filter({ hasText: text }).waitFor()
  return plain(rows)
}

const work = await opened('work')

await journey('a job that does not fit is marked, on its line', work, async () => {
  const began = performance.now()
  await file(work, 'axolotl-qlora.yml')
  await work.locator('.squiggly-error').first().waitFor()
  measured.first_mark_ms = Math.round(performance.now() - began)
  await command(work, 'View: Toggle Problems')
  await problems(work).first().waitFor()
  const told = await plain(problems(work).first())
  demand(/needs [\d.]+ of 22\.8 GiB on the rtx-4090/.test(told), `it says ${told}`)
  await lens(work).filter({ hasText: /does not fit/ }).waitFor()
  measured.problem = told.replaceAll('\n', ' ')
  await picture(work, 'marked')
})

await journey('what a key costs is said on hover', work, async () => {
  const line = work.locator('.view-line', { hasText: /^\s*micro_batch_size/ })
  await line.filter({ hasText: /−[\d.]+\sGiB/ }).waitFor() // then it is known
  await line.locator('span span').first().hover()
  await work.locator('.monaco-hover', { hasText: /Otherwise.*GiB.*fit.*at the peak/s }).first().waitFor()
  await picture(work, 'hover')
  await work.mouse.move(700, 20)
})

await journey('one click makes it fit, and the mark goes', work, async () => {
  await problems(work).filter({ hasText: /To fix/ }).first().click() // the changes are known
  await work.keyboard.press('Enter') // from the list into the editor, which has a menu of its own
  await work.locator('.editor-group-container .monaco-editor.focused').waitFor()
  await work.keyboard.press('Control+.')
  const actions = work.locator('.action-widget .monaco-list-row.action')
  await actions.filter({ hasText: / of 22\.8 GiB/ }).first().waitFor()
  await picture(work, 'action')
  await actions.filter({ hasText: / of 22\.8 GiB/ }).first().click()
  await work.locator('.squiggly-error').first().waitFor({ state: 'detached' })
  await work.keyboard.press('Control+Home') // the lens is above the first line, and what is out of sight is not drawn
  await lens(work).filter({ hasText: /^fits / }).first().waitFor()
  await picture(work, 'fits')
})

await journey('a plan stands beside the file', work, async () => {
  const began = performance.now()
  await file(work, 'axolotl-qlora.yml')
  await command(work, 'tunecast: Plan')
  const tab = work.locator('.tab', { hasText: /^plan of axolotl-qlora\.yml/ })
  await tab.waitFor()
  measured.plan_ms = Math.round(performance.now() - began)
  const text = work.locator('.editor-group-container', { has: tab }).locator('.view-lines')
  await text.filter({ hasText: /Rent/ }).waitFor()
  await picture(work, 'plan')
})

await journey('a launch is typed into a terminal and not run', work, async () => {
  await file(work, 'axolotl-qlora.yml')
  await command(work, 'tunecast: Launch')
  const said = await typed(work, 'launch')
  demand(/\.venv\/bin\/tunecast launch axolotl-qlora\.yml/.test(said.replaceAll('\n', '')), `it says ${said}`)
  demand(!/Launch|not found|refused/.test(said.replaceAll('\n', '').split('tunecast launch')[1]), `it ran: ${said}`)
  await picture(work, 'launch')
})

await journey('a script is watched by a command that is typed and not run', work, async () => {
  await file(work, 'train.py')
  await command(work, 'tunecast: Watch')
  const said = (await typed(work, 'watch')).replaceAll('\n', '')
  demand(/\.venv\/bin\/tunecast watch -- \.venv\/bin\/python train\.py/.test(said), `it says ${said}`)
  await picture(work, 'watch')
  await command(work, 'View: Toggle Panel Visibility')
})

await journey('a script that was traced says what its lines hold', work, async () => {
  await file(work, 'train.py')
  await command(work, 'tunecast: Trace')
  await work.locator('.tab', { hasText: /^trace of train\.py/ }).waitFor()
  await file(work, 'train.py')
  await work.locator('.view-line', { hasText: /GiB/ }).first().waitFor()
  await picture(work, 'lines')
})

await journey('the page stands beside the editor, with the file’s job in it', work, async () => {
  await file(work, 'axolotl-qlora.yml')
  const began = performance.now()
  await command(work, 'tunecast: Open the page')
  const page = work.frameLocator('iframe.webview.ready').frameLocator('iframe#active-frame').frameLocator('iframe[title=tunecast]')
  await page.locator('.verdict .title', { hasText: /RTX 4090/ }).waitFor()
  measured.page_ms = Math.round(performance.now() - began)
  const title = await page.locator('.verdict .title').textContent()
  demand(/Llama-3\.2-1B, QLoRA, 8 x 4,096/.test(title), `it says ${title}`)
  const spared = async (locator) => /([\d.]+)\s[GM]iB\sto\sspare/.exec(await plain(locator))?.[1]
  const said = await spared(page.locator('.verdict').first())
  demand(said && said === (await spared(lens(work).filter({ hasText: /^fits / }).first())), `the editor does not say ${said} to spare`)
  await picture(work, 'page')
})

await journey('another site shows that page in no frame', work, async () => {
  const frame = work.frames().find((each) => /\/proxy\/\d+\/#/.test(each.url()))
  demand(frame, 'the page is not open')
  const site = createServer((_, answer) => answer.setHeader('content-type', 'text/html').end(`<iframe src="${frame.url()}"></iframe>`)).listen(0, '127.0.0.1')
  try {
    const other = await (await browser.newContext()).newPage()
    const refusal = other.waitForEvent('console', (message) => /frame-ancestors/.test(message.text()))
    await other.goto(`http://localhost:${site.address().port}/`)
    await refusal
    await other.context().close()
  } finally {
    site.close()
  }
})

await work.context().close()

const bare = await opened('bare')

await journey('where tunecast is missing it is offered, and nothing is installed unasked', bare, async () => {
  await file(bare, 'axolotl-qlora.yml')
  const offer = bare.locator('.notification-toast', { hasText: /not installed/ })
  await offer.waitFor()
  const told = await offer.innerText()
  demand(/bare\/\.venv\/bin\/python/.test(told) && told.includes("pip install 'tunecast[lsp,serve]'"), `it says ${told}`)
  await picture(bare, 'offered')
})

await browser.close()
const log = readFileSync(join(folder, 'log'), 'utf8')
if (/Unhandled|FATAL/.test(log)) failures.push(`code-server: ${/.*(?:Unhandled|FATAL).*/.exec(log)[0]}`)
console.log(JSON.stringify({ passed, failures, measured }))
