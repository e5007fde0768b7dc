// The page of `tunecast serve` beside the editor, with the job of the file at hand in it.
//
//     panel: which origins am I in?  ->  tunecast serve --framed-by THEM  ->  panel: a frame of that server
//
// A server of our own, which only this panel may frame, and which ends with us. Where the panel cannot reach it (an editor
// in a browser whose proxy has another address), the page opens in a browser of its own.
import { spawn, type ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { request } from 'node:http'
import { basename } from 'node:path'
import { createInterface } from 'node:readline'
import * as vscode from 'vscode'
import type { Tunecast } from './find'
import { address, type Limits } from './job'

const START_MS = 60_000
/** What the panel says: where it is, or that the server cannot be reached from there. */
type Said = { origins: string[] } | { failed: string }

export class Page implements vscode.Disposable {
  private panel: vscode.WebviewPanel | undefined
  private process: ChildProcess | undefined
  private server: string | undefined
  private shown: string | undefined

  constructor(private readonly tunecast: () => Promise<Tunecast | undefined>) {}

  async open(document: vscode.TextDocument | undefined, limits: Limits): Promise<void> {
    const tunecast = await this.tunecast()
    if (!tunecast) return
    if (this.panel && this.server) {
      this.panel.reveal(undefined, true)
      return this.go(document, limits)
    }
    this.panel?.dispose()
    const panel = vscode.window.createWebviewPanel(
      'tunecast.page',
      'tunecast',
      { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true },
      { enableScripts: true, retainContextWhenHidden: true },
    )
    this.panel = panel
    panel.onDidDispose(() => this.end(panel))
    try {
      const origins = await this.origins(panel)
      const server = await this.start(tunecast, origins)
      if (this.panel !== panel) return this.stop()
      this.server = server
      const seen = (await vscode.env.asExternalUri(vscode.Uri.parse(server))).toString(true).replace(/\/?$/, '/')
      const inBrowser = vscode.env.uiKind === vscode.UIKind.Web
      if (inBrowser && !origins.includes(new URL(seen).origin)) return await this.elsewhere(document, limits, 'This editor and its proxy have different addresses')
      panel.webview.onDidReceiveMessage((said: Said) => {
        if ('failed' in said) void this.elsewhere(document, limits, said.failed)
      })
      panel.webview.html = frame(seen, await this.address(document, limits), inBrowser)
      this.shown = seen
    } catch (error) {
      panel.dispose()
      void vscode.window.showErrorMessage(`tunecast serve: ${error instanceof Error ? error.message : String(error)}`)
    }
  }

  /** Those that the panel is in, from its own to the editor's. */
  private origins(panel: vscode.WebviewPanel): Promise<string[]> {
    const said = new Promise<string[]>((done) => {
      const listening = panel.webview.onDidReceiveMessage((each: Said) => {
        if (!('origins' in each)) return
        listening.dispose()
        done([...new Set(each.origins)].filter((origin) => /^[a-z-]+:\/\//.test(origin)))
      })
    })
    panel.webview.html = document("default-src 'none'; script-src 'nonce-NONCE'", '', "api.postMessage({ origins: [location.origin, ...(location.ancestorOrigins ?? [])] })")
    return said
  }

  private start({ words }: Tunecast, origins: string[]): Promise<string> {
    const [program, ...given] = [...words, 'serve', '--port', '0', '--no-browser', '--ends-with-stdin']
    const framed = origins.flatMap((origin) => ['--framed-by', origin])
    const started = spawn(program!, [...given, ...framed], { stdio: ['pipe', 'pipe', 'pipe'] })
    this.process = started
    let errors = ''
    started.stderr.on('data', (text: Buffer) => (errors = (errors + text.toString()).slice(-2000)))
    return new Promise((done, failed) => {
      const late = setTimeout(() => failed(new Error('it did not start within a minute')), START_MS)
      createInterface(started.stdout).once('line', (line) => (clearTimeout(late), done(line.trim())))
      started.once('error', (error) => (clearTimeout(late), failed(error)))
      started.once('exit', () => (clearTimeout(late), failed(new Error(errors.trim() || 'it ended before it answered'))))
    })
  }

  private async go(document: vscode.TextDocument | undefined, limits: Limits): Promise<void> {
    if (this.shown) await this.panel?.webview.postMessage({ address: this.shown + (await this.address(document, limits)) })
  }

  /** Of a file with a job: the server reads the text as it stands in the editor, saved or not. */
  private async address(document: vscode.TextDocument | undefined, limits: Limits): Promise<string> {
    if (!document || document.languageId === 'python' || !this.server) return ''
    try {
      const read = await post(`${this.server}api/read`, { name: basename(document.fileName), text: document.getText() })
      return address(read, document.getText(), limits)
    } catch {
      return '' // no job that the page could show: it opens with its own
    }
  }

  private async elsewhere(document: vscode.TextDocument | undefined, limits: Limits, why: string): Promise<void> {
    const server = this.server
    if (!server) return
    void vscode.window.showInformationMessage(`${why}: the page opens in a browser of its own. It ends with this panel.`)
    if (this.panel) this.panel.webview.html = note(`The page is open in a browser, at ${server}. Close this panel to end it.`)
    await vscode.env.openExternal(vscode.Uri.parse(server + (await this.address(document, limits))))
  }

  private end(panel: vscode.WebviewPanel): void {
    if (this.panel !== panel) return
    this.panel = undefined
    this.stop()
  }

  private stop(): void {
    this.process?.stdin?.end()
    this.process?.kill()
    this.process = this.server = this.shown = undefined
  }

  dispose(): void {
    this.panel?.dispose()
    this.stop()
  }
}

function post(url: string, body: unknown): Promise<unknown> {
  return new Promise((done, failed) => {
    const asked = request(url, { method: 'POST', headers: { 'content-type': 'application/json' }, timeout: START_MS }, (answer) => {
      let text = ''
      answer.setEncoding('utf8').on('data', (part: string) => (text += part))
      answer.on('end', () => (answer.statusCode === 200 ? done(JSON.parse(text)) : failed(new Error(text))))
    })
    asked.on('error', failed).on('timeout', () => asked.destroy(new Error('no answer')))
    asked.end(JSON.stringify(body))
  })
}

/** `checked`: in a browser the server is asked first, through the proxy that the frame goes through. */
function frame(server: string, hash: string, checked: boolean): string {
  const { origin } = new URL(server)
  const policy = `default-src 'none'; frame-src ${origin}; connect-src ${origin}; style-src 'nonce-NONCE'; script-src 'nonce-NONCE'`
  return document(
    policy,
    `<style nonce="NONCE">html, body, iframe { width: 100%; height: 100%; margin: 0; padding: 0; border: 0; } body { overflow: hidden }</style>
<iframe title="tunecast" allow="clipboard-write"></iframe>`,
    `const [server, hash, checked] = ${JSON.stringify([server, hash, checked]).replaceAll('<', '\\u003c')}
const frame = document.querySelector('iframe')
addEventListener('message', ({ data }) => { if (String(data?.address).startsWith(server)) frame.src = data.address })
const reached = checked ? fetch(server + 'api/health').then((answer) => answer.ok, () => false) : Promise.resolve(true)
reached.then((ok) => ok ? (frame.src = server + hash) : api.postMessage({ failed: 'The page cannot be reached through the proxy of this editor' }))`,
  )
}

function note(text: string): string {
  return document("default-src 'none'; style-src 'nonce-NONCE'", `<style nonce="NONCE">body { padding: 1em }</style><p>${text.replaceAll('&', '&amp;').replaceAll('<', '&lt;')}</p>`, '')
}

function document(policy: string, body: string, script: string): string {
  const nonce = randomBytes(16).toString('hex')
  return `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${policy}"></head>
<body>${body}${script && `<script nonce="NONCE">const api = acquireVsCodeApi()\n${script}</script>`}</body></html>`.replaceAll('NONCE', nonce)
}
